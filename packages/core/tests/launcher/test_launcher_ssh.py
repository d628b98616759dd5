"""Jobs over ssh: real sshds in network namespaces that have their own addresses, host names and /dev/shm."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.namespaces import Host, environ_with_ssh, namespaces, processes_of
from support.processes import Pids, Ringrun, eventually, is_alive

Script = Callable[..., str]
Remote = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with namespaces(2) as made:
        yield made


@pytest.fixture
def remote(ringrun: Ringrun, hosts: list[Host]) -> Remote:
    """Runs ringrun on host0."""
    ringrun.environ = environ_with_ssh(hosts[0], ringrun.environ)

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        return ringrun(*words, prefix=hosts[0].command([], ringrun.directory))

    return start


def stderr_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.read()


BOTH = ["-H", "host0:1,host1:2"]


def test_the_hosts_have_nothing_in_common_but_the_network(hosts: list[Host]) -> None:
    assert [host.run(["hostname"]).stdout for host in hosts] == ["host0\n", "host1\n"]
    hosts[0].run(["touch", "/dev/shm/mine"], check=True)
    assert hosts[1].run(["ls", "/dev/shm"]).stdout == ""
    hosts[0].run(["rm", "/dev/shm/mine"], check=True)
    assert socket.gethostname() not in ("host0", "host1")


def test_ranks_on_two_hosts(remote: Remote, script: Script, hosts: list[Host]) -> None:
    name = script(
        """
        import socket, json
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "RINGCORE_CROSS_RANK",
                 "RINGCORE_CROSS_SIZE", "MASTER_ADDR", "HOROVOD_HOSTNAME")
        print(json.dumps([socket.gethostname(), os.getcwd(), sys.executable, [os.environ[n] for n in names]]))
        print("err", file=sys.stderr)
        """
    )
    done = remote(*BOTH, "--log-dir", "logs", name)
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line.partition("> ")[2]) for line in sorted(done.stdout.splitlines())]
    assert [row[0] for row in shown] == ["host0", "host1", "host1"]
    assert len({(row[1], row[2]) for row in shown}) == 1
    address = hosts[0].address
    assert [row[3] for row in shown] == [
        ["0", "0", "1", "0", "2", "0", "2", address, "host0"],
        ["1", "0", "2", "1", "2", "1", "2", address, "host1"],
        ["2", "1", "2", "1", "2", "0", "1", address, "host1"],
    ]
    assert sorted(done.stderr.splitlines()) == [f"[{rank}]<stderr> err" for rank in range(3)]


def test_only_remote_hosts(remote: Remote, script: Script, hosts: list[Host]) -> None:
    name = script(
        "import socket\nprint(socket.gethostname(), os.environ['MASTER_ADDR'], os.environ['RINGCORE_RENDEZVOUS'])"
    )
    done = remote("-np", "1", "-H", "host1", name)
    assert done.returncode == 0, done.stderr
    host, master, rendezvous = done.stdout.split()[1:]
    assert (host, master) == ("host1", hosts[1].address)
    assert rendezvous.startswith(f"tcp:{hosts[0].address}:")


def test_a_host_file_and_a_named_interface(remote: Remote, ringrun: Ringrun, script: Script, hosts: list[Host]) -> None:
    (ringrun.directory / "hosts").write_text("host1 slots=1\nhost0 slots=1\n")
    done = remote(
        "--hostfile", "hosts", "--network-interfaces", "eth0", script("print(os.environ['RINGCORE_RENDEZVOUS'])")
    )
    assert done.stdout.count(f"tcp:{hosts[0].address}:") == 2, done.stderr
    done = remote(
        "--hostfile", "hosts", "--network", "10.213.0.0/16", script("print(os.environ['RINGCORE_RENDEZVOUS'])")
    )
    assert done.stdout.count(f"tcp:{hosts[0].address}:") == 2, done.stderr
    done = remote("--hostfile", "hosts", "--network-interfaces", "eth9", script("pass"))
    assert done.returncode == 2 and "no address on eth9; it has " in done.stderr


def test_the_key_and_variables_arrive_and_are_in_no_argv(
    ringrun: Ringrun, remote: Remote, script: Script, hosts: list[Host], pids: Pids
) -> None:
    ringrun.environ["A_VARIABLE"] = "with spaces; $(id) and 'quotes'"
    ringrun.environ["SSH_SOMETHING"] = "of the launcher's login"
    name = script(
        """
        with open(f"key.{rank}", "wb") as file: file.write(os.pread(int(os.environ["RINGCORE_KEY_FD"]), 99, 0))
        assert os.environ["A_VARIABLE"] == "with spaces; $(id) and 'quotes'"
        if rank: assert "SSH_SOMETHING" not in os.environ
        write_pid(rank)
        while not os.path.exists("go"): time.sleep(0.01)
        """
    )
    with ringrun.started("-H", "host0:1,host1:1", name, prefix=hosts[0].command([], ringrun.directory)) as process:
        pids.wait(2)
        keys = {(ringrun.directory / f"key.{rank}").read_bytes() for rank in range(2)}
        (key,) = keys
        assert len(key) == 32
        for pid in [*processes_of(hosts[0]), *processes_of(hosts[1])]:
            for where in ("cmdline", "environ"):
                content = Path(f"/proc/{pid}/{where}").read_bytes()
                assert key not in content and key.hex().encode() not in content
        (ringrun.directory / "go").touch()
        assert process.wait(30) == 0, stderr_of(process)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param("sys.exit(7)", 7, marks=pytest.mark.long),
        pytest.param("os.kill(os.getpid(), 9)", 137, marks=pytest.mark.long),
        ("raise OSError('far')", 1),
    ],
)
def test_exit_codes_and_tracebacks_come_from_afar(remote: Remote, script: Script, text: str, code: int) -> None:
    done = remote(*BOTH, script(f"if rank == 2: {text}\ntime.sleep(600)"))
    assert done.returncode == code
    assert "rank 2 of 3 on host1" in done.stderr
    assert code != 1 or done.stderr.endswith("OSError: far\n")


def test_much_output_of_a_far_rank_arrives_whole(remote: Remote, script: Script) -> None:
    done = remote("-np", "1", "-H", "host1", script("for i in range(100_000): print(i, 'x' * 50)"))
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()] == [str(i) for i in range(100_000)]


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGINT, signal.SIGTERM))],
)
def test_far_ranks_end_with_the_launcher(
    ringrun: Ringrun, remote: Remote, script: Script, hosts: list[Host], pids: Pids, number: int
) -> None:
    name = script(
        """
        if len(sys.argv) > 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            write_pid(f"child{rank}")
            time.sleep(600)
        subprocess.Popen([sys.executable, __file__, "child"])
        write_pid(rank)
        time.sleep(600)
        """
    )
    with ringrun.started(*BOTH, name, prefix=hosts[0].command([], ringrun.directory)) as process:
        found = pids.wait(6)
        process.send_signal(number)
        process.wait(30)
    eventually(lambda: not any(map(is_alive, found.values())), "all processes of the job are gone, near and far")
    for host in hosts:
        assert host.run(["ls", "/dev/shm"]).stdout == ""


def test_far_ranks_end_when_the_cable_is_cut(
    ringrun: Ringrun, remote: Remote, script: Script, hosts: list[Host], pids: Pids
) -> None:
    name = script("write_pid(rank)\ntime.sleep(600)")
    with ringrun.started(
        "-H", "host0:1,host1:1", "--agent-timeout", "2", name, prefix=hosts[0].command([], ringrun.directory)
    ) as process:
        ranks = pids.wait(2)
        hosts[1].set_link(False)
        try:
            eventually(lambda: not is_alive(ranks["1"]), "the far rank has ended")
            assert process.wait(60) == 1
            assert "host host1" in stderr_of(process)
        finally:
            hosts[1].set_link(True)
    assert not is_alive(ranks["0"])


def test_a_job_on_two_hosts_is_looked_at_from_that_of_the_launcher(
    ringrun: Ringrun, remote: Remote, script: Script, hosts: list[Host], pids: Pids
) -> None:
    name = script(
        """
        import numpy, ringcore
        def is_late():
            while not os.path.exists("go"):
                time.sleep(0.01)
        ringcore.init()
        write_pid(rank)
        if rank == 2:
            is_late()
        ringcore.allreduce(numpy.ones(2), name="late")
        """
    )
    place = hosts[0].command([], ringrun.directory)
    ask = [*place, sys.executable, "-m", "ringcore"]
    options = {"cwd": ringrun.directory, "env": ringrun.environ, "capture_output": True, "text": True, "timeout": 60}
    with ringrun.started(*BOTH, name, prefix=place) as process:
        pids.wait(3)

        def all_wait() -> bool:
            said = subprocess.run([*ask, "status"], check=False, **options).stdout
            return said.count("for rank 2 in allreduce 'late'") == 2 and "rank 2 on host1" in said

        eventually(all_wait, "two ranks wait for the third", 60)

        def stands_there() -> bool:  # who does not answer in time is left out
            said = subprocess.run([*ask, "stacks"], check=False, **options).stdout
            return "in is_late" in said.partition("rank 2:")[2]

        eventually(stands_there, "the third one's stack is shown", 60)
        (ringrun.directory / "go").touch()
        assert process.wait(60) == 0


def test_a_host_that_hears_from_the_launcher_goes_on(remote: Remote, script: Script) -> None:
    done = remote("-np", "1", "-H", "host1", "--agent-timeout", "3", script("time.sleep(5)\nprint('done')"))
    assert (done.returncode, done.stdout) == (0, "[0]<stdout> done\n")


def test_an_agent_that_is_killed_takes_its_ranks_along(
    ringrun: Ringrun, remote: Remote, script: Script, hosts: list[Host], pids: Pids
) -> None:
    name = script("if rank == 1: os.getpid = os.getppid\nwrite_pid(rank)\ntime.sleep(600)")
    with ringrun.started("-H", "host0:1,host1:2", name, prefix=hosts[0].command([], ringrun.directory)) as process:
        found = pids.wait(3)  # That of "rank 1" is its agent's.
        os.kill(found["1"], signal.SIGKILL)
        assert process.wait(30) == 1
        assert "host host1" in stderr_of(process)
    eventually(lambda: not any(map(is_alive, found.values())), "all ranks are gone")


def test_what_ssh_says_is_shown(remote: Remote, hosts: list[Host]) -> None:
    done = remote("-H", "host0:1,host1:1", "-p", "9", "true")
    assert done.returncode == 1
    assert "ringrun: host host1: ssh: " in done.stderr and "refused" in done.stderr
    done = remote("-H", "host0:1,host1:1", "--ssh-identity-file", "/nowhere", "--remote-python", "/no/python", "true")
    assert done.returncode == 1 and "ringrun: host host1: ssh: " in done.stderr and "/no/python" in done.stderr


def test_a_program_that_does_not_exist_there(remote: Remote) -> None:
    done = remote("-H", "host0:1,host1:1", "--no-python", "no-such-program")
    assert done.returncode == 127 and "no-such-program" in done.stderr


def test_names_from_sshs_configuration(remote: Remote, script: Script, hosts: list[Host]) -> None:
    config = hosts[0].directory / "ssh_config"
    before = config.read_text()
    config.write_text(f"Host alias-of-1\n  HostName {hosts[1].address}\n  HostKeyAlias host1\n{before}")
    try:
        done = remote("-np", "1", "-H", "alias-of-1", script("import socket\nprint(socket.gethostname())"))
        assert done.stdout == "[0]<stdout> host1\n", done.stderr
    finally:
        config.write_text(before)


def test_a_greeting_of_the_far_shell_does_no_harm(
    remote: Remote, ringrun: Ringrun, script: Script, hosts: list[Host]
) -> None:
    wrapper = ringrun.directory / "python"
    wrapper.write_text(f'#!/bin/sh\necho "Welcome!"\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    done = remote("-np", "1", "-H", "host1", "--remote-python", str(wrapper), "echo", "works")
    assert done.stdout == "[0]<stdout> works\n", done.stderr


def test_standard_input_of_far_ranks_is_empty(remote: Remote, script: Script) -> None:
    done = remote(*BOTH, script("assert rank == 0 or sys.stdin.read() == ''\nprint('x')"))
    assert done.stdout.count("x\n") == 3, done.stderr


def test_hosts_go_on_while_nobody_reads_what_their_ranks_print(
    ringrun: Ringrun, remote: Remote, script: Script, hosts: list[Host], pids: Pids
) -> None:
    # An agent that hears nothing for two seconds ends its ranks. One that hears how things stand does not.
    name = script(
        """
        write_pid(rank)
        if rank == 1:
            while True: os.write(1, b"x" * 999 + b"\\n")
        while not os.path.exists("stuck"): time.sleep(0.01)
        for _ in range(40): time.sleep(0.1)
        os.write(2, b"lived\\n")
        time.sleep(600)
        """
    )
    words = [*BOTH, "--agent-timeout", "2", name]
    with ringrun.started(*words, prefix=hosts[0].command([], ringrun.directory)) as process:
        ranks = pids.wait(3)
        (ringrun.directory / "stuck").touch()
        assert process.stderr is not None
        assert sorted(process.stderr.readline() for _ in range(2)) == ["[0]<stderr> lived\n", "[2]<stderr> lived\n"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    eventually(lambda: not any(map(is_alive, ranks.values())), "all ranks are gone")
