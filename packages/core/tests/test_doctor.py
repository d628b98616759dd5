"""`ringcore doctor` tells what it has tried, and what to do about what does not work."""

import io
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ringcore.commands.doctor as module
from ringcore import __version__


def _doctor() -> tuple[dict[str, Any], str]:
    text = io.StringIO()
    report = module.doctor(text)
    return report, text.getvalue()


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "ringcore", "doctor"],
        pytest.param(["-c", "import ringcore; ringcore.doctor()"], marks=pytest.mark.long),
    ],
)
def test_it_tries_both_transports(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, check=False)
    assert f"ringcore   {__version__}" in done.stdout
    assert done.stdout.count("works: 2 processes summed") == 2, done.stdout + done.stderr
    assert "\nproblems\n" in done.stdout


def test_a_self_test_that_fails_is_a_problem_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SELF_TEST", "import sys; sys.exit('the sums are wrong on purpose')")
    report, text = _doctor()
    assert [outcome["works"] for outcome in report["transports"].values()] == [False, False]
    assert len(report["problems"]) == 2
    assert "the sums are wrong on purpose" in text


def test_a_self_test_that_hangs_ends_at_the_limit_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = f"import os, time; open('{tmp_path}/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    monkeypatch.setattr(module, "_SELF_TEST", program)
    monkeypatch.setattr(module, "_SELF_TEST_LIMIT_S", 1.5)
    report, text = _doctor()
    assert "no result after 1.5 s" in text
    assert len(report["problems"]) == 2
    started = [int(path.name) for path in tmp_path.iterdir()]
    assert len(started) == 4
    assert not [pid for pid in started if Path(f"/proc/{pid}/cmdline").exists() and _command(pid)]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_transport_that_was_not_taken_does_not_count_as_working(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SELF_TEST", "print('transport tcp')")
    report, _ = _doctor()
    assert report["transports"]["shm"] == {"works": False, "reason": "the two processes used 'tcp' instead"}
    assert report["transports"]["tcp"]["works"] is True


def test_an_adapter_of_another_version_is_a_problem_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, version in (("ringcore-keras", "0.0.1"), ("ringcore-jax", __version__), ("jax", "9.9")):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    report, text = _doctor()
    assert report["adapters"]["ringcore-keras"] == "0.0.1"
    assert report["adapters"]["ringcore-jax"] == __version__
    assert report["frameworks"]["jax"] == "9.9"
    assert not [problem for problem in report["problems"] if "jax" in problem]
    assert f"pip install ringcore=={__version__} ringcore-keras=={__version__}" in " ".join(text.split())


def test_libraries_are_opened_in_a_child_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (libm,) = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("/libm.so.6")
    }
    shutil.copy(libm, tmp_path / "libmpi.so.40")  # a library, but no MPI
    (tmp_path / "libnccl.so.2").write_bytes(b"\x7fELF cut off")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    report, text = _doctor()
    opened = report["libraries"]["MPI"][0]
    assert opened == {"name": "libmpi.so.40", "found": True, "version": "", "path": str(tmp_path / "libmpi.so.40")}
    assert "it does not tell its version" in text
    broken = report["libraries"]["NCCL"][0]
    assert broken["found"] is False
    assert "file too short" in broken["reason"] or "invalid ELF" in broken["reason"]


@pytest.mark.parametrize(
    ("found", "allowed", "way"),
    [
        ({"CUDA driver": "CUDA 13.0", "NVRTC": "NVRTC 13.0", "NCCL": "NCCL 2.30.1"}, "1", "NCCL, as NCCL_MULTI"),
        (
            {"CUDA driver": "CUDA 13.0", "NVRTC": "NVRTC 13.0", "NCCL": "NCCL 2.30.1"},
            "0",
            "the GPU's memory (CUDA",
        ),
        (
            {"CUDA driver": "CUDA 11.7", "NVRTC": "NVRTC 11.7", "NCCL": "NCCL 2.29.9"},
            "1",
            "the GPU's memory (CUDA",
        ),
        ({"CUDA driver": "CUDA 11.6", "NVRTC": "NVRTC 11.6"}, "1", "the host, to which tensors are copied: other"),
        (
            {"CUDA driver": "CUDA 13.0", "NCCL": "NCCL 2.28.3"},
            "1",
            "the host, to which tensors are copied: the ker",
        ),
        ({}, "1", "there is no driver"),
    ],
)
def test_it_tells_which_way_ranks_take_that_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, str], allowed: str, way: str
) -> None:
    def try_library(name: str) -> dict[str, Any]:
        kind = next(kind for kind, names in module._LIBRARIES.items() if name in names)
        if kind not in found:
            return {"name": name, "found": False, "reason": "not here"}
        return {"name": name, "found": True, "version": found[kind], "path": name}

    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", allowed)
    monkeypatch.setattr(module, "try_library", try_library)
    monkeypatch.setattr(module, "bundled", lambda names: [])
    monkeypatch.setattr(module, "_try_transport", lambda name: {"works": True, "reason": "not tried"})
    report, text = _doctor()
    assert report["shared_gpu"].startswith(way)
    # Of GPUs only where there is a driver.
    assert (f"ranks that share a GPU would meet by way of\n  {way}" in text) == bool(found)


def test_libraries_that_are_not_here_take_a_line_and_their_reasons_are_told_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "try_library", lambda name: {"name": name, "found": False, "reason": "cannot open"})
    monkeypatch.setattr(module, "_try_transport", lambda name: {"works": True, "reason": "not tried"})
    _, text = _doctor()
    assert "cannot open" not in text
    assert "not here" in text and "NCCL, CUDA driver, NVRTC; `ringcore doctor --all` says why" in " ".join(text.split())
    everything = io.StringIO()
    module.doctor(everything, everything=True)
    assert "libcuda.so.1: no: cannot open" in everything.getvalue()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("", "what leaves this host"), ("on", "all TCP"), ("OFF", "nothing (RINGCORE_ENCRYPTION=off): whoever sees")],
)
def test_it_tells_what_is_encrypted(monkeypatch: pytest.MonkeyPatch, setting: str, expected: str) -> None:
    monkeypatch.setattr(module, "_try_transport", lambda name: {"works": True, "reason": "not tried"})
    monkeypatch.setenv("RINGCORE_ENCRYPTION", setting)
    report, text = _doctor()
    assert report["encryption"].startswith(expected)
    assert not report["problems"]
    assert f"is encrypted {expected}" in " ".join(text.split())


def test_it_tells_whether_the_kernel_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_try_transport", lambda name: {"works": True, "reason": "not tried"})
    report, text = _doctor()
    tcp_ulp = 31
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as asked:
        try:
            asked.setsockopt(socket.IPPROTO_TCP, tcp_ulp, b"tls")
        except OSError as error:
            assert report["kernel_tls"].startswith(f"no: the kernel has no TLS: {error.strerror}")
        else:  # Then whether it can change keys decides.
            assert report["kernel_tls"].startswith(("yes, where RINGCORE_KERNEL_TLS=1", "no: the kernel cannot change"))
    assert " ".join(f"TLS by the kernel {report['kernel_tls']}".split()) in " ".join(text.split())
