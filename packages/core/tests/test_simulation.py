"""Jobs that are not there: `ringcore simulate`, and the library behind it."""

import importlib
import sys
from pathlib import Path

import pytest
from ringcore import InvalidArgument
from ringcore.commands.cli import main
from ringcore.network.units import parse_bytes, parse_seconds
from ringcore.simulation import Network, simulate
from ringcore.simulation.picture import bytes_text, time_text


def test_a_network_is_read_from_its_text() -> None:
    assert Network.parse("100gbit,10us") == Network(100e9, 10e-6)
    assert Network.parse(" 2.5Gbit,1ms,3us") == Network(2.5e9, 1e-3, 3e-6)
    assert (parse_bytes("100M"), parse_bytes("64Mi"), parse_bytes("4096"), parse_bytes("1KB")) == (
        10**8,
        1 << 26,
        4096,
        1000,
    )
    assert parse_seconds("1.5ms") == 1.5e-3
    for text in ("", "100gbit", "fast,10us", "0gbit,1us", "100gbit,10"):
        with pytest.raises(InvalidArgument):
            Network.parse(text)


def test_a_ring_takes_its_closed_form() -> None:
    ranks, nbytes = 16, 1 << 24
    job = simulate(ranks, network=Network(10e9, 20e-6, message_s=0), nbytes=nbytes, algorithms=["ring"])
    assert job.best.algorithm == "ring"
    assert job.best.peers == 2
    assert job.best.sent_bytes == pytest.approx(2 * (ranks - 1) / ranks * nbytes)
    moved = 2 * (ranks - 1) / ranks * nbytes * 8 / 10e9
    assert moved < job.best.seconds < moved + 2 * (ranks - 1) * 20e-6 + 0.2 * moved


def test_an_exchange_of_few_bytes_is_offered_in_few_rounds() -> None:
    job = simulate(64, collective="alltoall", network=Network(10e9, 20e-6), nbytes=4096)
    assert job.best.algorithm == "bruck"
    assert job.best.peers == 11  # those at powers of two, on either side


def test_trees_win_among_thousands_and_a_slow_host_is_felt() -> None:
    even = simulate(4096, hosts=512, nbytes="1M")
    assert even.best.algorithm != "ring"
    assert even.agreement.step_bytes < 8192
    slow = simulate(4096, hosts=512, nbytes="1M", algorithms=[even.best.algorithm], slow={7: 8.0}, jitter="50us")
    assert slow.best.seconds > 1.5 * even.best.seconds
    assert slow.agreement.again_s > even.agreement.again_s


@pytest.mark.parametrize("algorithms", [["hierarchical"], ["rings"]])
def test_what_there_is_not_is_refused(algorithms: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        simulate(8, algorithms=algorithms)  # on a host each there is nothing to be hierarchical about


def test_jobs_that_cannot_be_are_refused() -> None:
    for wrong in ({"hosts": 9}, {"collective": "barrier"}, {"slow": {8: 2.0}}, {"operations": 0}):
        with pytest.raises(InvalidArgument):
            simulate(8, **wrong)
    with pytest.raises(InvalidArgument):
        simulate(1)


def test_the_start_is_calculated_from_what_is_sent() -> None:
    few, many = (simulate(ranks, hosts=ranks // 8, algorithms=["ring"]).start for ranks in (16, 4096))
    assert few.links == 15  # each with each
    assert many.links < 32
    assert 30 * 4096 < many.table_bytes < 60 * 4096  # the random names alone are 24 bytes
    assert 0 < few.met_s < few.told_s < few.connected_s
    assert many.met_s == pytest.approx(256 * few.met_s)
    slow = simulate(4096, hosts=512, algorithms=["ring"], network="1gbit,10us").start
    # Four hosts hand the table on before the last has it, and each sends it to at most eight others.
    sent_s = many.table_bytes * 8 / 1e9
    assert 4 * sent_s < slow.told_s - slow.met_s < many.told_s - many.met_s + 5 * 8 * 8 * sent_s


def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert main(["simulate", "--ranks=64", "--hosts=8", "--bytes=4M", "--network=25gbit,5us"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "allreduce of 4 MB among 64 ranks on 8 hosts"
    assert lines[1].split()[0] == "algorithm"
    assert {line.split()[0] for line in lines[2:5]} & {"hierarchical", "double_tree", "ring"}
    assert any(line.startswith("agreement: ") for line in lines)
    assert any(line.startswith("start: ") for line in lines)
    assert main(["simulate", "--ranks=4", "--hosts=5"]) == 2
    assert "4 ranks cannot stand on 5 hosts" in capsys.readouterr().err


def test_the_picture_has_a_curve_for_each_algorithm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "curve.svg"
    arguments = ["simulate", "--ranks=64", "--hosts=8", "--bytes=1M", f"--picture={path}", "--slow=7=2"]
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        assert main(arguments) == 2
        assert "ringcore[simulate]" in capsys.readouterr().err
        return
    assert main(arguments) == 0
    assert "4 jobs of 8 to 64 ranks" in capsys.readouterr().out
    assert path.read_text().startswith("<?xml")


def test_values_are_told_in_units() -> None:
    assert [time_text(each) for each in (2.0, 1.5e-3, 2e-7)] == ["2 s", "1.5 ms", "0.2 us"]
    assert [bytes_text(each) for each in (100e6, 0)] == ["100 MB", "0 B"]
