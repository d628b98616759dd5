"""Jobs with servers: what scripts see, where servers run, and how they end."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest
import ringcore
from ringcore.environment.placement import find_placement
from ringcore.environment.settings import Settings
from ringcore.launcher import _hosts, _layout, _options
from support.processes import Ringrun, eventually, is_alive

Script = Callable[..., str]

# Of the launcher's children those that are servers.
SERVERS = """
def servers():
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{entry}/cmdline").read()
            parent = int(open(f"/proc/{entry}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getppid() and "ringcore.job.server" in words:
            found.append(int(entry))
    return found
"""


@pytest.mark.parametrize(
    ("ranks", "servers", "transport"), [(2, 1, "shm"), (2, 2, "tcp"), (1, 1, "shm"), (3, 2, "tcp")]
)
def test_scripts_see_ranks_only_and_get_their_sums(
    ringrun: Ringrun, script: Script, ranks: int, servers: int, transport: str
) -> None:
    name = script(
        f"""
        import numpy as np, ringcore as ring
        for life in range(2):  # ranks may come again
            ring.init()
            n = ring.size()
            assert (n, ring.rank(), ring.local_size()) == ({ranks}, rank, {ranks}), (n, ring.rank(), ring.local_size())
            assert (ring.local_rank(), ring.cross_size(), ring.is_homogeneous()) == (rank, 1, True)
            some = ring.add_process_set([0])
            for step in range(12):
                for count in (1, 3000, 300_000):
                    for dtype in (np.float32, np.float16):
                        sums = ring.allreduce(np.full(count, rank + 1, dtype), op=ring.Sum, name=f"t{{count}}{{dtype}}")
                        assert (sums == n * (n + 1) // 2).all()
                several = ring.grouped_allreduce([np.full(9000, rank, np.float32) for _ in range(3)], name="g")
                assert all((one == (n - 1) / 2).all() for one in several)
                ring.barrier()
            assert ring.allgather(np.full((rank + 1, 50_000), rank), name="a").shape[0] == n * (n + 1) // 2
            assert (ring.broadcast(np.full(100_000, rank), 0, name="b") == 0).all()
            if rank == 0: ring.allreduce(np.ones(50_000), process_set=some, name="alone")
            ring.shutdown()
        """
    )
    done = ringrun("-np", str(ranks), "--servers", str(servers), "--transport", transport, name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_servers_end_with_ranks_that_never_call_them(ringrun: Ringrun, script: Script) -> None:
    # Ranks may be there before the servers are.
    waits = "if rank == 0:\n    while len(servers()) < 2: time.sleep(0.01)\n    print(*servers())\n"
    done = ringrun("-np", "2", "--servers", "2", script(f"{SERVERS}\n{waits}"))
    assert (done.returncode, done.stderr) == (0, "")
    pids = [int(word) for word in done.stdout.split() if word.isdigit()]
    assert len(pids) == 2
    for pid in pids:
        eventually(lambda pid=pid: not is_alive(pid), f"server {pid} has ended")


# In the place of the engine's own plans, one from outside: all data goes to the server, and comes back.
REGISTERS = """
def served(request):
    builder = ring.plans.Builder("served", request, 1, serving=1)
    server = builder[request.ranks]
    server.recv(0, 0)
    for rank in range(request.ranks):
        if rank > 0: server.recv_reduce(rank, 0, final=rank == request.ranks - 1)
        builder[rank].send(request.ranks, 0)
        builder[rank].recv(request.ranks, 0)
    for rank in range(request.ranks): server.send(rank, 0)
    return builder.plan()
import ringcore as ring
ring.init()
ring.plans.register(served, always=True)
"""


@pytest.mark.parametrize("registers", ["", REGISTERS])
def test_a_lost_server_fails_all_ranks_and_is_named(ringrun: Ringrun, script: Script, registers: str) -> None:
    name = script(
        SERVERS
        + registers
        + textwrap.dedent("""
        import numpy as np, ringcore as ring
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ringrun knows what has happened at once
        ring.init()
        data = np.ones(100_000, np.float32)
        ring.allreduce(data, name="x")
        if rank == 0: os.kill(servers()[0], signal.SIGKILL)
        try:
            while True: ring.allreduce(data, name="x")
        except ring.PeerLostError as error:
            print(error, flush=True)
            sys.exit(3)  # os._exit might leave the launcher without word of which rank was lost
        """)
    )
    done = ringrun("-np", "2", "--servers", "1", "--shutdown-timeout", "60", name)
    assert done.returncode == 137
    assert len(re.findall(r"rank 2 \(server 0\) .*, as seen by rank", done.stdout)) == 2, done.stdout
    assert "ringrun: server 0 (rank 2) on localhost was killed by SIGKILL" in done.stderr


# What frameworks do, with arrays of numpy.
SERVED = """
import numpy as np, ringcore as ring
from ringcore.adapter import Placed, Served
ring.init()
numbers = dict(lr=0.5, momentum=0.0, dampening=0.0, weight_decay=0.0)
numbers |= dict(nesterov=False, maximize=False, rate_in_momentum=False)
served = Served("sgd", [numbers], "float32", [1000, 1], [Placed(0, 0, 1000, 0), Placed(1, 0, 1, 0)], {staleness})
rows = [np.ones(1000, np.float32), np.ones(1, np.float32)]
served.send_weights(rows)
gradients = [np.full(row.shape, 1 + rank, np.float32) for row in rows]
def step():
    if {staleness} is None: served.step(rows, gradients, [numbers], [True, True])
    else: served.step_alone(rows, gradients, [numbers], [True, True])
"""


@pytest.mark.parametrize(
    ("ranks", "servers", "transport"), [(2, 1, "shm"), (4, 3, "shm"), (3, 2, "tcp"), (1, 1, "tcp")]
)
def test_servers_hold_optimizers_of_several_lives(
    ringrun: Ringrun, script: Script, ranks: int, servers: int, transport: str
) -> None:
    name = script(
        "import ringcore as ring\nfor life in range(2):\n"
        + textwrap.indent(SERVED.format(staleness=None), "    ")
        + textwrap.indent(
            textwrap.dedent("""
            average = np.float32((1 + ring.size()) / 2)
            for count in range(1, 4):
                step()
                assert all((row == 1 - 0.5 * count * average).all() for row in rows), rows
                assert (ring.allreduce(np.full(9, rank, np.float32), name="beside") == average - 1).all()
            ring.shutdown()
            """),
            "    ",
        )
    )
    done = ringrun("-np", str(ranks), "--servers", str(servers), "--transport", transport, name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("staleness", [None, 1])
def test_a_server_that_is_lost_with_its_optimizer_fails_all_ranks(
    ringrun: Ringrun, script: Script, staleness: int | None
) -> None:
    name = script(
        SERVERS
        + SERVED.format(staleness=staleness)
        + textwrap.dedent("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ringrun knows what has happened at once
        step()
        if rank == 0: os.kill(servers()[0], signal.SIGKILL)
        try:
            while True: step()
        except ring.PeerLostError as error:
            print(error, flush=True)
            sys.exit(3)  # os._exit might leave the launcher without word of which rank was lost
        """)
    )
    done = ringrun("-np", "2", "--servers", "1", "--shutdown-timeout", "60", name)
    assert done.returncode == 137
    assert len(re.findall(r"rank 2 \(server 0\) .*, as seen by rank", done.stdout)) == 2, done.stdout


def test_a_rank_that_does_not_step_is_named(ringrun: Ringrun, script: Script) -> None:
    name = script(
        SERVED.format(staleness=None)
        + textwrap.dedent("""
        step()
        if rank == 0:
            try: step()
            except (ring.TimeoutError, ring.PeerLostError) as error: print(error)  # or as the server fails the job
            open("told", "w").close()
        while not os.path.exists("told"): time.sleep(0.01)
        """)
    )
    ringrun.environ["RINGCORE_TIMEOUT_S"] = "2"
    done = ringrun("-np", "2", "--servers", "1", name)
    assert "servers.request" in done.stdout
    assert "rank 1" in done.stdout


def test_elastic_jobs_have_no_servers() -> None:
    for words in (["--min-np", "1"], ["--nnodes", "2", "--master-addr", "x"]):
        with pytest.raises(_options.UsageError, match="--servers are for a job of one ringrun whose ranks stay"):
            _options.parse(["-np", "2", "--servers", "1", *words, "true"], {})


def test_a_function_runs_on_the_ranks_alone() -> None:
    assert ringcore.run(abs, (-3,), np=2, servers=1) == [3, 3]


@pytest.mark.parametrize(
    ("words", "placed"),
    [
        (["-np", "2", "--servers", "2"], [0, 0, "s0", "s0"]),
        # On slots that are left, and where there are none, beside the ranks in turns.
        (["-np", "2", "-H", "localhost:1,a:1,b:1", "--servers", "1"], [0, 1, "s2"]),
        (["-np", "2", "-H", "localhost:1,a:1,b:1", "--servers", "3"], [0, 1, "s2", "s0", "s1"]),
        (["-H", "localhost:2,a:2", "--servers", "2"], [0, 0, 1, 1, "s0", "s1"]),
    ],
)
def test_where_servers_run(monkeypatch: pytest.MonkeyPatch, words: list[str], placed: list[object]) -> None:
    monkeypatch.setattr(_hosts, "resolve", lambda hosts: {host.name: "127.0.0.1" for host in hosts})
    options = _options.parse([*words, "--", "true"], {})
    layout = _layout.make_layout(options, Settings())
    slots = sorted((slot for node in layout.nodes for slot in node.slots), key=lambda slot: slot.rank)
    assert [f"s{slot.host}" if slot.serves else slot.host for slot in slots] == placed
    assert layout.size + layout.servers == len(slots)
    for slot in slots:
        place = find_placement(_layout.rank_environ(layout, slot, "default"))
        assert (place.rank, place.size, place.servers, place.serves) == (
            slot.rank,
            layout.size,
            layout.servers,
            slot.serves,
        )
    hosts = {slot.host for slot in slots if not slot.serves}
    assert layout.group_size == len(hosts)
