"""The command line: spellings, files, hosts, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ringcore.environment import settings as _settings
from ringcore.launcher import _config, _hosts, _layout, _options
from ringcore.launcher._hosts import Host, HostError
from ringcore.launcher._options import UsageError
from support.processes import Ringrun

Script = Callable[..., str]


def parsed(*words: str, **environ: str) -> object:
    return _options.parse([*words, "train.py"], environ)


@pytest.mark.parametrize(
    "word", ["-np", "-n", "--np", "--num-proc", "--num_proc", "--nproc-per-node", "--nproc_per_node"]
)
def test_every_spelling_of_the_number_of_ranks(ringrun: Ringrun, script: Script, word: str) -> None:
    done = ringrun(word, "2", script("print(os.environ['WORLD_SIZE'])"))
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout> 2", "[1]<stdout> 2"]


@pytest.mark.parametrize("field", list(_settings.names()))
def test_every_setting_is_an_option_and_is_in_the_help(field: str) -> None:
    known = _options.known_options()
    option = "--" + field.replace("_", "-")
    assert option in known
    assert all(alias in known for alias in _settings.Settings.__dataclass_fields__[field].metadata["aliases"])


def test_help_lists_the_settings_and_where_they_come_from(ringrun: Ringrun) -> None:
    done = ringrun("--help")
    assert done.returncode == 0
    for name in _settings.names():
        assert "--" + name.replace("_", "-") in done.stdout
    assert "RINGCORE_TIMEOUT_S" in done.stdout


@pytest.mark.parametrize(
    ("words", "variable", "value"),
    [
        (["--fusion-threshold-bytes", "4MiB"], "RINGCORE_FUSION_THRESHOLD_BYTES", "4MiB"),
        (["--fusion-threshold-mb", "32"], "RINGCORE_FUSION_THRESHOLD_BYTES", str(32 * 1024**2)),
        (["--timeline-filename", "t.json"], "RINGCORE_TIMELINE", "t.json"),
        (["--stall-check-warning-time-seconds", "7"], "RINGCORE_STALL_WARNING_S", "7"),
        (["--no-stall-check"], "RINGCORE_STALL_WARNING_S", "0"),
        (["--stall-check-shutdown-time-seconds", "90"], "RINGCORE_TIMEOUT_S", "90"),
        (["--start-timeout", "60"], "RINGCORE_START_TIMEOUT_S", "60"),
        (["--start_timeout=60"], "RINGCORE_START_TIMEOUT_S", "60"),
        (["--network-interface", "lo", "--network-interface", "eth0"], "RINGCORE_NETWORK_INTERFACES", "lo,eth0"),
        (["--network-interfaces", "lo,eth0"], "RINGCORE_NETWORK_INTERFACES", "lo,eth0"),
        (["--log-level", "DEBUG"], "RINGCORE_LOG_LEVEL", "DEBUG"),
        (["--deterministic"], "RINGCORE_DETERMINISTIC", "1"),
        (["--no-allow-pickle"], "RINGCORE_ALLOW_PICKLE", "0"),
    ],
)
def test_options_become_the_ranks_variables(
    ringrun: Ringrun, script: Script, words: list[str], variable: str, value: str
) -> None:
    done = ringrun("-np", "1", *words, script(f"print(os.environ[{variable!r}])"))
    assert done.stdout == f"[0]<stdout> {value}\n", done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say how many ranks"),
        (["-np", "0"], "at least 1"),
        (["-np", "two"], "'two'"),
        (["--log-dirr", "x"], "did you mean --log-dir?"),
        (["--timeout-s", "5m"], "'5m'"),
        (["--min-np", "3", "--max-np", "2"], "the job could never run"),
        (["-np", "2", "--min-np", "3"], "-np 2 is less than --min-np 3"),
        (["-np", "3", "--max-np", "2"], "-np 3 is more than --max-np 2"),
        (["-np", "2", "--reset-limit", "3"], "for elastic jobs"),
        (["-np", "2", "--drain-when", "notice"], "for elastic jobs"),
        (["-np", "2", "--evict-slow", "2"], "for elastic jobs: give --min-np"),
        (["-np", "2", "--min-np", "1", "--evict-slow", "1"], "a number greater than 1"),
        (["-np", "2", "--min-np", "1", "--evict-slow", "soon"], "a number greater than 1"),
        (["-np", "2", "--min-np", "1", "--evict-slow", "2", "--no-elastic"], "leave out RINGCORE_ELASTIC=0"),
        (["-np", "2", "--min-np", "1", "--drain-when", "'"], "which is no command"),
        (["-np", "2", "--min-np", "1", "--drain-when", " "], "names no program"),
        (["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "9", "3"], "the first is the shorter one"),
        (["--host-discovery-script", "./none.sh"], "there is no file"),
        (["-H", "localhost:1", "--min-np", "2"], "the hosts have 1 slots"),
        (["--max-restarts", "3"], "elastic"),
        (["--nnodes", "1:4"], "the address of the launcher (ringrun --listen)"),
        (["--nnodes", "4:1"], "MIN is more than MAX"),
        (["--nnodes", "1:4:2"], "a number, or MIN:MAX"),
        (["--nnodes", "1:4", "--rdzv-endpoint", "127.0.0.1:1"], "have to share a key"),
        (["--nnodes", "1:4", "-H", "a:1"], "--hosts is for a ringrun that starts the ranks"),
        (["--nnodes", "1:4", "--host-discovery-script", "x"], "come by themselves: leave out one of the two"),
        (["--nnodes", "1:4", "-np", "2"], "-np is about the whole job"),
        (["--nnodes", "1:4", "--min-np", "2"], "give it to its launcher (ringrun --listen)"),
        (["--nnodes", "1:4", "--elastic-timeout", "2"], "--elastic-timeout is about the whole job"),
        (["--nnodes", "1:4", "--servers", "1"], "leave out --nnodes"),
        (["--nnodes", "1:4", "--listen", "29400"], "--listen runs no command"),
        (["--listen", ":29400"], "PORT or HOST:PORT"),
        (["--listen", "host:0"], "a port from 1 to 65535"),
        (["--mpi"], "mpirun"),
        (["--check-build"], "ringcore doctor"),
        (["-H", "a:1", "--hostfile", "x"], "not both"),
        (["-H", "-oProxyCommand=id:1"], "expected one argument"),
        (["-H=-oProxyCommand=id:1"], "no host"),
        (["-H", "a;id:1"], "no host"),
        (["-H", "a:0"], "no slots"),
        (["-H", "a:1,a:1"], "twice"),
        (["-np", "5", "-H", "localhost:2"], "5 ranks do not fit into 2 slots"),
        (["--nnodes", "2", "-np", "2"], "--master-addr"),
        (["--nnodes", "2", "--master-addr", "a", "-np", "2"], "key"),
        (["--nnodes", "2", "--master-addr", "a", "-np", "3"], "same number"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a"], "count from 0"),
        (["-np", "1", "--network-interfaces", "a,,b"], "interface names"),
        (["-np", "1", "-x", "NO_SUCH_VARIABLE_HERE"], "NO_SUCH_VARIABLE_HERE"),
    ],
)
def test_refused_with_a_reason(ringrun: Ringrun, words: list[str], says: str) -> None:
    done = ringrun(*words, "true")
    assert done.returncode == 2
    assert says in done.stderr and done.stderr.startswith("ringrun: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--listen", "29400"], "how many ranks may be there"),
        (["--listen", "29400", "--nnodes", "1:1"], "with a MAX of more than 1, or --min-np"),
        (["--listen", "29400", "--nnodes", "1:4", "--min-np", "8"], "--min-np 8 is more than the 4 of --nnodes 1:4"),
        (["--listen", "29400", "--nnodes", "1:4", "--module"], "--module is about what runs on a node"),
        (["--listen", "29400", "--nnodes", "1:4", "--no-python"], "--no-python is about what runs on a node"),
        (["--listen", "29400", "--nnodes", "1:4", "--tee", "3"], "--tee is about what runs on a node"),
        (["--listen", "29400", "--nnodes", "1:4", "--heartbeat-s", "2"], "--heartbeat-s is about what runs on a node"),
        (["--listen", "29400", "--nnodes", "1:4", "--slots-per-host", "2"], "--slots-per-host is for a ringrun that"),
        (["--nnodes", "1:2", "--rdzv-endpoint", "a:1", "--role", "x", "true"], "--role is about the whole job"),
        (["--nnodes", "1:2", "--rdzv-endpoint", "a:1", "--rdzv-id", "x", "true"], "--rdzv-id is about the whole job"),
        (["--nnodes", "1:2", "--rdzv-endpoint", "a:1", "--key-file", "job.key", "-x", "NOT_SET", "true"], "-x NOT_SET"),
        (["--listen", "29400", "--nnodes", "1:2", "-x", "A=b"], "--env is about what runs on a node"),
        (["--listen", "29400", "--nnodes", "1:2", "--drain-when", "x"], "--drain-when is about what runs on a node"),
        (["--listen", "29400", "--nnodes", "1:2"], "have to share a key"),
        (["--listen", "0.0.0.0:29400", "--nnodes", "1:2", "--key-file", "job.key"], "name one address"),
        (["--listen", "192.0.2.1:29400", "--nnodes", "1:2", "--key-file", "job.key"], "cannot listen on 192.0.2.1"),
        (["--listen", "29400", "--nnodes", "1:2", "--key-file", "none.key"], "the key file none.key cannot be read"),
        (["--nnodes", "1:2", "--rdzv-endpoint", "a:1"], "no command; for example: ringrun --nnodes 2:4"),
    ],
)
def test_launchers_without_ranks_and_their_nodes_are_refused(ringrun: Ringrun, words: list[str], says: str) -> None:
    key = ringrun.directory / "job.key"
    key.touch(0o600)
    key.write_bytes(bytes(32))
    done = ringrun(*words)
    assert done.returncode == 2
    assert says in done.stderr and "Traceback" not in done.stderr


def test_no_command_is_refused(ringrun: Ringrun) -> None:
    assert "no command" in ringrun("-np", "2").stderr


def test_a_wrong_variable_is_found_before_the_start(ringrun: Ringrun) -> None:
    ringrun.environ["RINGCORE_TIMEOUT_S"] = "soon"
    done = ringrun("-np", "1", "true")
    assert done.returncode == 2 and "RINGCORE_TIMEOUT_S is 'soon'" in done.stderr


def test_a_misspelt_variable_is_mentioned(ringrun: Ringrun) -> None:
    ringrun.environ["RINGCORE_TIMEOUT"] = "5"
    done = ringrun("-np", "1", "true")
    assert (
        done.returncode == 0
        and "RINGCORE_TIMEOUT is set, but there is no such setting; did you mean RINGCORE_TIMEOUT_S?" in done.stderr
    )


def test_options_of_others_without_effect_are_accepted_and_mentioned(ringrun: Ringrun) -> None:
    done = ringrun("-np", "1", "--gloo", "--cycle-time-ms", "1", "--rdzv-backend=c10d", "true")
    assert done.returncode == 0
    assert [line.split(" has no effect")[0] for line in done.stderr.splitlines()] == [
        "ringrun: --gloo", "ringrun: --cycle-time-ms", "ringrun: --rdzv-backend",
    ]  # fmt: skip


def test_what_follows_the_command_is_the_commands(ringrun: Ringrun, script: Script) -> None:
    name = script("print(sys.argv[1:])")
    for words in (["-np", "1", name], ["-np", "1", "--", sys.executable, name]):
        done = ringrun(*words, "--np", "9", "-H", "x", "--my_option")
        assert done.stdout == "[0]<stdout> ['--np', '9', '-H', 'x', '--my_option']\n"


def test_a_module_a_script_and_a_plain_program(ringrun: Ringrun, script: Script) -> None:
    name = script("print(sys.executable)", "some_module.py")
    assert sys.executable in ringrun("-np", "1", name).stdout
    assert sys.executable in ringrun("-np", "1", "-m", "some_module").stdout
    done = ringrun("-np", "1", "--no-python", f"./{name}")
    assert done.returncode == 126
    assert ringrun("-np", "1", "echo", "plain").stdout == "[0]<stdout> plain\n"


def test_the_working_directory_and_more_variables(ringrun: Ringrun) -> None:
    ringrun.environ["PASSED_ON"] = "here"
    done = ringrun(
        "-np", "1", "--workdir", "/", "-x", "A=b=c", "-x", "PASSED_ON", "sh", "-c", "echo $PWD $A $PASSED_ON"
    )
    assert done.stdout == "[0]<stdout> / b=c here\n"


CONFIG = {"np": 2, "log_dir": "logs", "settings": {"timeout_s": 7.5, "deterministic": True, "env": ["A=1", "B=2"]}}
CONFIGS = {".json": json.dumps(CONFIG)}
if sys.version_info >= (3, 11):  # What an older one says is tested below.
    CONFIGS[".toml"] = (
        'np = 2\nlog-dir = "logs"\n[settings]\ntimeout_s = 7.5\ndeterministic = true\nenv = ["A=1", "B=2"]\n'
    )


@pytest.mark.parametrize(("ending", "text"), CONFIGS.items())
def test_configuration_files(ringrun: Ringrun, script: Script, ending: str, text: str) -> None:
    (ringrun.directory / f"config{ending}").write_text(text)
    name = script("print(*(os.environ[n] for n in ('RINGCORE_TIMEOUT_S', 'RINGCORE_DETERMINISTIC', 'A', 'B')))")
    done = ringrun("--config-file", f"config{ending}", name)
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout> 7.5 1 1 2", "[1]<stdout> 7.5 1 1 2"], done.stderr
    assert (ringrun.directory / "logs" / "rank.1" / "stdout").exists()
    done = ringrun("-np", "1", "--timeout-s", "8", "--config-file", f"config{ending}", name)
    assert done.stdout == "[0]<stdout> 8 1 1 2\n"


HOROVOD_YAML = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 5
timeline:
  filename: trace.json
stall_check:
  enabled: true
  warning_time_seconds: 120
logging:
  level: INFO
"""


def test_horovods_nested_configuration() -> None:
    # The YAML text above, as PyYAML reads it: the file's format is not what is tested here.
    content = {
        "controller": "gloo",
        "params": {"fusion_threshold_mb": 32, "cycle_time_ms": 5},
        "timeline": {"filename": "trace.json"},
        "stall_check": {"enabled": True, "warning_time_seconds": 120},
        "logging": {"level": "INFO"},
    }
    words = _config.words_of("c.yaml", content, _options.known_options())
    options = _options.parse([*words, "-np", "1", "x"], {})
    assert options.settings == {
        "RINGCORE_FUSION_THRESHOLD_BYTES": str(32 * 1024**2),
        "RINGCORE_TIMELINE": "trace.json",
        "RINGCORE_STALL_WARNING_S": "120",
        "RINGCORE_LOG_LEVEL": "INFO",
    }


def test_yaml_is_read_or_pyyaml_is_asked_for(ringrun: Ringrun, script: Script) -> None:
    (ringrun.directory / "config.yaml").write_text(HOROVOD_YAML)
    done = ringrun("-np", "1", "--config-file", "config.yaml", script("print(os.environ['RINGCORE_TIMELINE'])"))
    try:
        import yaml  # noqa: F401
    except ImportError:
        assert done.returncode == 2 and "pip install pyyaml" in done.stderr
    else:
        assert done.stdout == "[0]<stdout> trace.json\n"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("c.json", '{"no-such": 1}', "there is no option 'no-such'"),
        ("c.json", '{"np": true}', "np needs a value"),
        ("c.json", '{"verbose": 3}', "verbose is true or false"),
        ("c.json", "[1]", "a table of options"),
        ("c.json", "{", "c.json"),
        ("c.ini", "", "ending"),
        ("missing.json", None, "cannot read"),
    ],
)
def test_configuration_files_with_errors(ringrun: Ringrun, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (ringrun.directory / name).write_text(text)
    done = ringrun("--config-file", name, "true")
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_toml_on_an_old_python_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("np = 2")
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(UsageError, match=r"3\.11.*JSON"):
        parsed("--config-file", str(path))


def test_host_lists() -> None:
    assert _hosts.parse_hosts("a:2, user@b-1.example.:4,[fd00::1]:1,c") == [
        Host("a", 2), Host("user@b-1.example.", 4), Host("[fd00::1]", 1), Host("c", 1),
    ]  # fmt: skip
    assert Host("user@b", 1).address == "b" and Host("[fd00::1]", 1).address == "fd00::1"


def test_host_files(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# cluster\na slots=2 max_slots=4\n\nb:3\nc\n")
    assert _hosts.parse_hostfile(str(path)) == [Host("a", 2), Host("b", 3), Host("c", 1)]
    path.write_text("a slots=2\nb cpus=2\n")
    with pytest.raises(HostError, match=r"line 2.*'cpus=2'"):
        _hosts.parse_hostfile(str(path))


def test_ranks_fill_host_after_host() -> None:
    slots = _hosts.lay_out([Host("a", 1), Host("b", 3), Host("c", 9)], 5)
    assert [(s.rank, s.host, s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in slots] == [
        (0, 0, 0, 1, 0, 3), (1, 1, 0, 3, 1, 3), (2, 1, 1, 3, 0, 1), (3, 1, 2, 3, 0, 1), (4, 2, 0, 1, 2, 3),
    ]  # fmt: skip


def test_an_unknown_host_is_named_at_once(ringrun: Ringrun) -> None:
    done = ringrun("-H", "localhost:1,no-such-host.invalid:1", "true")
    assert done.returncode == 2
    assert "host no-such-host.invalid does not resolve" in done.stderr


def test_local_host_lists_need_no_ssh(ringrun: Ringrun, script: Script) -> None:
    (ringrun.directory / "hosts").write_text("localhost slots=2\n")
    ringrun.environ["PATH"] = "/nowhere"
    for words in (["-H", "localhost:2"], ["--hostfile", "hosts"], ["-hostfile", "hosts"]):
        assert sorted(ringrun(*words, script("print('x')")).stdout.splitlines()) == ["[0]<stdout> x", "[1]<stdout> x"]


def test_torchruns_variables_give_defaults() -> None:
    options = _options.parse(
        ["--key-file", "k", "x"],
        {
            "PET_NNODES": "2",
            "PET_NPROC_PER_NODE": "3",
            "PET_NODE_RANK": "1",
            "PET_MASTER_ADDR": "m",
            "PET_MASTER_PORT": "29500",
        },
    )
    layout = _layout.make_layout(options, _settings.Settings())
    assert (layout.size, layout.group_size, layout.serves, layout.rendezvous) == (6, 2, False, "tcp:m:29400")
    assert [slot.rank for slot in layout.nodes[0].slots] == [3, 4, 5]


def test_numbers_of_ranks_by_words() -> None:
    assert _options.parse(["--nproc-per-node", "cpu", "x"], {}).nproc_per_node == len(os.sched_getaffinity(0))


def test_the_command_ringcore(ringrun: Ringrun, script: Script) -> None:
    def ringcore(*words: str) -> subprocess.CompletedProcess[str]:
        options = {
            "capture_output": True,
            "text": True,
            "timeout": 60,
            "cwd": ringrun.directory,
            "env": ringrun.environ,
        }
        return subprocess.run([sys.executable, "-m", "ringcore", *words], check=False, **options)

    assert ringcore("run", "-np", "1", script("print('x')")).stdout == "[0]<stdout> x\n"
    assert "no command 'nonsense'" in ringcore("nonsense").stderr
    assert ringcore("--help").returncode == 0
    shown = ringcore("env")
    assert shown.returncode == 0 and "-> alone" in shown.stdout
    inside = ringcore("run", "-np", "1", "--timeout-s", "9", sys.executable, "-m", "ringcore", "env").stdout
    assert "-> ringrun     rank 0 of 1" in inside and "9.0  (RINGCORE_TIMEOUT_S)" in inside
    ringrun.environ.update(RANK="0", WORLD_SIZE="2", RINGCORE_SPIN_US="fast")
    refused = ringcore("env")
    assert refused.returncode == 1
    assert "refused: RANK=0" in refused.stdout and "RINGCORE_SPIN_US is 'fast'" in refused.stdout
