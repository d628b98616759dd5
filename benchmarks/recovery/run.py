"""Measures what it costs that a rank is lost, leaves or comes, beside peers; in minutes, and alone on the machine.

    python benchmarks/recovery/run.py [killed] [hosts] [silent] [leaves] [comes] [state] [beside] [cost] [goodput]
                                      [--repeats 5] [--libraries ringcore ULFM torchft]

killed: one of 4 ranks of a host gets SIGKILL. hosts: the same, each rank on a host of its own (network namespaces).
silent: its host's cable is pulled out instead. From then to the end of the step that it was in on the last of those who
are left (torchft leaves that step out: to the end of the next one), less what a step takes.
leaves: `ringcore drain`; comes: a rank that had ended is back. What the step took in which that happens, on the rank
that waited longest, less what a step takes. state: the same of one with 400 MB of state, between hosts with cables of 1
Gbit/s: what of this is more than the cable takes for it, too, and the percentage of the steps that were done in 1.25
times as long as the cable takes, of those that are otherwise. beside: the same where each host has two ranks, so that
who comes finds the state on its own. cost: a step of 2 ranks, in an elastic job and in
another. The gradients are 64 MiB, but for `cost`, which trains a net of 25 million parameters. goodput: one of 4 ranks
gets SIGKILL every 20 s and comes again after 5; the percentage of the seconds in which ranks lived that went into steps
which count; a step is 0.1 s on a device, in which the host sleeps, and a sum of 16 MiB. hosts, silent, state and beside
need root. Writes benchmarks/results/recovery.jsonl (--fresh begins it anew), and prints a table of what was found.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(HERE.parent)]

from support.mpis import installed  # noqa: E402
from support.namespaces import Host, environ_with_ssh, namespaces  # noqa: E402
from support.processes import RINGRUN, clean_environ, is_alive  # noqa: E402
from support.torchft import lighthouse_command, torchft_python  # noqa: E402

RANKS = 4
LIMIT_S, GRACE_S = 120, 10
LIGHTHOUSE_PORT, STORE_PORT = 29510, 29520
HEARTBEAT_S = 0.5
RESTARTS = ("-np", str(RANKS), "--min-np", "2", "--blacklist-cooldown-range", "1", "1")
CABLE = ("1gbit", "256kb", "50ms")
STATE_BYTES, BYTES_PER_S = 400e6, 125e6
CABLE_S = STATE_BYTES / BYTES_PER_S
MAY_TAKE_S = 1.25 * CABLE_S
# Steps before anything happens, and those behind it that tell what a step takes then.
BEFORE, BEHIND = 8, 6
KILLS, KILL_EVERY_S, BACK_AFTER_S = 5, 20.0, "5"
# Library -> cases.
MEASURED = {
    "ringcore": ["killed", "hosts", "silent", "leaves", "comes", "state", "beside", "cost", "goodput"],
    "ULFM": ["killed"],
    "torchft": ["killed"],
}
# What torch frees in each step glibc gives back to the system or not, by chance, and to get it again takes a quarter of
# a step of `cost`: in bytes, so much that it never does.
KEEPS_MEMORY = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 30)) | {
    "MALLOC_TOP_PAD_": str(256 << 20)
}


class Job:
    """Ranks that train, and what they have written.

    Args:
        folder: Of its files.
        commands: The processes that start them, with the variables of each.
        host: Where they are started; None: here.
    """

    def __init__(
        self, folder: Path, commands: Sequence[tuple[Sequence[str], Mapping[str, str]]], host: Host | None = None
    ) -> None:
        self._folder = folder
        output = (folder / "output").open("wb")
        base = clean_environ() | {"OMP_NUM_THREADS": "1"}
        base = base if host is None else environ_with_ssh(host, base)
        self._started = [
            subprocess.Popen(
                list(words) if host is None else host.command(words, folder), stdout=output, stderr=output,
                cwd=folder, env=base | own, start_new_session=True,
            )
            for words, own in commands
        ]  # fmt: skip

    def steps(self) -> dict[int, list[tuple[float, int]]]:
        """By process: the steps' ends, and how many ranks each had."""
        return {pid: [(when, ranks) for when, ranks, _ in lines] for pid, lines in self.numbered_steps().items()}

    def numbered_steps(self) -> dict[int, list[tuple[float, int, int]]]:
        """By process: the steps' ends, how many ranks each had, and which it was."""
        found = {}
        for path in self._folder.glob("steps.*"):
            lines = path.read_text().splitlines(keepends=True)
            whole = [line.split() for line in lines if line.endswith("\n")]
            found[int(path.suffix[1:])] = [(float(when), int(ranks), int(step)) for when, ranks, step in whole]
        return found

    def begun(self) -> dict[int, float]:
        """By process: when it began."""
        found = {int(path.suffix[1:]): path.read_text() for path in self._folder.glob("begun.*")}
        return {pid: float(when) for pid, when in found.items() if when}

    def wait(self, condition: Callable[[dict[int, list[tuple[float, int]]]], object]) -> None:
        """Until what the ranks have written fulfils it."""
        deadline = time.monotonic() + LIMIT_S
        while not condition(self.steps()):
            if time.monotonic() > deadline:
                raise SystemExit(f"not within {LIMIT_S} s:\n{(self._folder / 'output').read_text()[-4000:]}")
            time.sleep(0.05)

    def wait_for_ranks(self, count: int) -> list[int]:
        """Until so many train; their processes."""

        def ready(steps: dict[int, list[tuple[float, int]]]) -> bool:
            # All have had steps of that many: torchft's replicas come one after the other.
            return sum(len([line for line in lines if line[1] == count]) >= BEFORE for lines in steps.values()) == count

        self.wait(ready)
        return list(self.steps())

    def end(self) -> None:
        """End all of it: launchers clean up where they may, and after a while nobody is asked."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        deadline = time.monotonic() + LIMIT_S
        for pid in self.steps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while is_alive(pid) and time.monotonic() < deadline:
                time.sleep(0.01)


def ringrun(*words: str, rank: str = "ringcore", folder: Path, model: str = "") -> list[str]:
    """The words that start ranks."""
    program = [
        sys.executable,
        str(HERE / "rank.py"),
        rank,
        str(folder),
        *([f"--model={model}", model] if model else []),
    ]
    return [*RINGRUN, *words, *program]


def commands_of(library: str, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    """What starts 4 ranks on this host."""
    script = [str(HERE / "rank.py"), library, str(folder)]
    if library == "ringcore":
        return [(ringrun("-np", str(RANKS), "--min-np", "2", folder=folder), {})]
    if library == "ULFM":
        mpi = installed("Open MPI")
        words = [*mpi.launch(RANKS), "--with-ft", "ulfm", str(mpi.programs / "python"), *script]
        return [(words, mpi.environ())]
    python = torchft_python()
    started: list[tuple[list[str], dict[str, str]]] = [(lighthouse_command("127.0.0.1", LIGHTHOUSE_PORT, 1), {})]
    for replica in range(RANKS):
        words = [str(python), "-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=0"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{STORE_PORT + replica}"]
        own = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{LIGHTHOUSE_PORT}", "REPLICA": str(replica)}
        started.append(([*words, *script], own))
    return started


def step_s(lines: Sequence[tuple[float, int]]) -> float:
    """What a step takes: the median."""
    times = [when for when, _ in lines]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def lost(job: Job, lose: Callable[[int], None]) -> float:
    """Seconds from the loss of a rank to the end of its step on the others, less a step."""
    ranks = job.wait_for_ranks(RANKS)
    steps = job.steps()
    victim = random.choice(ranks)
    time.sleep(random.uniform(0, step_s(steps[victim])))
    begin = time.monotonic()
    lose(victim)

    def behind(steps: Mapping[int, list[tuple[float, int]]]) -> dict[int, list[tuple[float, int]]]:
        kept = {pid: [line for line in lines if line[0] > begin and line[1] < RANKS] for pid, lines in steps.items()}
        return {pid: lines for pid, lines in kept.items() if pid != victim and len(lines) >= BEHIND}

    job.wait(lambda steps: len(behind(steps)) == RANKS - 1)
    after = behind(job.steps())
    return max(lines[0][0] - begin - step_s(lines) for lines in after.values())


class Change:
    """A number of ranks that there come to be.

    Args:
        job: Of the ranks.
        ranks: The processes that are there before and behind it.
        begin: It comes after this time.
        size: The number.
        behind_s: So long they train on before anybody looks.
    """

    def __init__(self, job: Job, ranks: Sequence[int], begin: float, size: int, behind_s: float = 0.0) -> None:
        def changed(steps: Mapping[int, list[tuple[float, int]]]) -> dict[int, int]:
            found = {}
            for pid in ranks:
                lines = steps[pid]
                at = next((i for i, (when, n) in enumerate(lines) if when > begin and n == size), None)
                if at is not None and len(lines) > at + BEHIND and lines[-1][0] > lines[at][0] + behind_s:
                    found[pid] = at
            return found

        job.wait(lambda steps: len(changed(steps)) == len(ranks))
        self._steps = job.steps()
        self._at = changed(self._steps)

    def longest(self) -> float:
        """Seconds that the step took in which it came, less a step: on who waited longest."""
        pauses = []
        for pid, at in self._at.items():
            lines = self._steps[pid]
            # A commit is part of the step that follows it.
            pauses.append(max(lines[i][0] - lines[i - 1][0] for i in range(at, at + 2)) - self._usual_s(pid))
        return max(pauses)

    def trained(self, seconds: float) -> float:
        """The part of the steps of so many seconds, from the last step before it, that were done: on who did fewest."""
        parts = []
        for pid, at in self._at.items():
            lines = self._steps[pid]
            since = lines[at - 1][0]
            # In parts of a step: whole ones would be too rough a measure.
            ends = [when for when, _ in lines if when >= since]
            done = next(i for i, when in enumerate(ends) if when > since + seconds)
            done_s = done - 1 + (since + seconds - ends[done - 1]) / (ends[done] - ends[done - 1])
            parts.append(done_s * self._usual_s(pid) / seconds)
        return min(parts)

    def _usual_s(self, pid: int) -> float:
        at = self._at[pid]
        return step_s(self._steps[pid][max(at - BEHIND, 0) : at])


@contextlib.contextmanager
def started(
    commands: Callable[[Path], Sequence[tuple[Sequence[str], Mapping[str, str]]]], host: Host | None = None
) -> Iterator[Job]:
    """A job in a folder of its own; it is killed."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name), commands(Path(name)), host)
        try:
            yield job
        finally:
            job.end()


def killed(library: str) -> float:
    """One of 4 ranks of a host."""
    with started(lambda folder: commands_of(library, folder)) as job:
        return lost(job, lambda pid: os.kill(pid, signal.SIGKILL))


def on_hosts(lose: Callable[[list[Host], int], None], **environ: str) -> float:
    """One of 4 ranks, each on a host of its own; the launcher is on one more."""
    with namespaces(RANKS + 1) as (at, *hosts):
        names = ",".join(f"{host.name}:1" for host in hosts)

        def commands(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
            return [(ringrun("-np", str(RANKS), "--min-np", "2", "-H", names, folder=folder), environ)]

        with started(commands, at) as job:
            return lost(job, lambda pid: lose(hosts, pid))


def network_of(pid: int | str) -> str:
    """The network that a process is in."""
    return os.readlink(f"/proc/{pid}/ns/net")


def pull_out(hosts: list[Host], pid: int) -> None:
    """The cable of the host of a process."""
    next(host for host in hosts if network_of(host.pid) == network_of(pid)).set_link(up=False)


def silent(_library: str) -> float:
    """Less the time after which a silent rank is lost."""
    return on_hosts(pull_out, RINGCORE_HEARTBEAT_S=str(HEARTBEAT_S)) - HEARTBEAT_S


def killed_on_host(_library: str) -> float:
    """The process alone; its host is as before."""
    return on_hosts(lambda _, pid: os.kill(pid, signal.SIGKILL))


def leaves(_library: str) -> float:
    """One of 4 ranks, because somebody asked it to."""
    name = f"recovery-{os.getpid()}"
    words = ("-np", str(RANKS), "--min-np", "2", "--rdzv-id", name)
    with started(lambda folder: [(ringrun(*words, rank="commits", folder=folder), {})]) as job:
        ranks = job.wait_for_ranks(RANKS)
        begin = time.monotonic()
        asked = [sys.executable, "-m", "ringcore", "drain", name, str(RANKS - 1)]
        subprocess.run(asked, check=True, env=clean_environ(), stdout=subprocess.DEVNULL)
        job.wait(lambda steps: any(n < RANKS for lines in steps.values() for _, n in lines))
        job.wait(lambda _: sum(is_alive(pid) for pid in ranks) == RANKS - 1)
        return Change(job, [pid for pid in ranks if is_alive(pid)], begin, RANKS - 1).longest()


def comes(_library: str) -> float:
    """A rank that has ended is started again, and joins the three that are left."""
    with started(lambda folder: [(ringrun(*RESTARTS, rank="commits", folder=folder), {})]) as job:
        return back(job).longest()


def back(job: Job, behind_s: float = 0.0, host: Host | None = None) -> Change:
    """A rank of the job is killed, of this host if one is given, and comes again."""
    ranks = job.wait_for_ranks(RANKS)
    begin = time.monotonic()
    victim = next(pid for pid in ranks if host is None or network_of(pid) == network_of(host.pid))
    os.kill(victim, signal.SIGKILL)
    left = [pid for pid in ranks if pid != victim]
    job.wait(lambda steps: all(any(when > begin and n < RANKS for when, n in steps[pid]) for pid in left))
    return Change(job, left, time.monotonic(), RANKS, behind_s)


def state(ranks_of_host: int) -> Change:
    """A rank whose state takes long comes: between hosts."""
    with namespaces(RANKS // ranks_of_host + 1) as (at, *hosts):
        for host in hosts:
            host.shape(*CABLE)
        names = ",".join(f"{host.name}:{ranks_of_host}" for host in hosts)

        def commands(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
            return [(ringrun(*RESTARTS, "-H", names, rank="commits", folder=folder, model="state"), {})]

        with started(commands, at) as job:
            return back(job, MAY_TAKE_S, hosts[-1])  # where rank 0 is not


def cost(elastic: bool) -> float:
    """What a step of 2 ranks takes."""
    words = ("-np", "2", *(("--min-np", "1") if elastic else ()))
    with started(lambda folder: [(ringrun(*words, folder=folder, model="mlp"), KEEPS_MEMORY)]) as job:
        job.wait(lambda steps: len(steps) == 2 and all(len(lines) > 40 for lines in steps.values()))
        return statistics.median(step_s(lines[5:]) for lines in job.steps().values())


def goodput(_library: str) -> float:
    """The part of the seconds in which ranks lived that went into steps which count."""

    def commands(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
        cool_down = ("--blacklist-cooldown-range", BACK_AFTER_S, BACK_AFTER_S, "--reset-limit", "100")
        words = ("-np", str(RANKS), "--min-np", "2", *cool_down)
        return [(ringrun(*words, rank="commits", folder=folder, model="device"), {})]

    with started(commands) as job:
        job.wait_for_ranks(RANKS)
        begin = time.monotonic()
        died: dict[int, float] = {}
        for kill in range(KILLS):
            time.sleep(max(0.0, begin + (kill + 0.5) * KILL_EVERY_S - time.monotonic()))
            alive = [pid for pid in job.begun() if is_alive(pid)]
            os.kill(random.choice(alive), signal.SIGKILL)
            while time.monotonic() < begin + (kill + 1) * KILL_EVERY_S:
                for pid in job.begun():
                    if pid not in died and not is_alive(pid):
                        died[pid] = time.monotonic()
                time.sleep(0.02)
        end = time.monotonic()
        lived = sum(
            max(0.0, min(died.get(pid, end), end) - max(since, begin)) for pid, since in job.begun().items()
        )  # fmt: skip
        usual = statistics.median(step_s(lines) for lines in job.steps().values() if len(lines) > 1)
        steps = [line for lines in job.numbered_steps().values() for line in lines if begin < line[0] <= end]
    counted = {step: ranks for _, ranks, step in sorted(steps)}
    return usual * sum(counted.values()) / lived


CASES: dict[str, Callable[[str], float]] = {
    "killed": killed,
    "hosts": killed_on_host,
    "silent": silent,
    "leaves": leaves,
    "comes": comes,
    "goodput": goodput,
}


TRAINED = "state of 400 MB at 1 Gbit/s, training in 1.25 times as long as the cable takes"
TRAINED_BESIDE = "state of 400 MB that is on the host, training in as long"
PERCENT = ("goodput", TRAINED, TRAINED_BESIDE)


def measure(case: str, library: str, repeat: int) -> Iterator[tuple[str, float]]:
    """What was measured, and seconds; of what is in `PERCENT` a part of 1."""
    if case == "cost":
        for elastic in (True, False) if repeat % 2 else (False, True):
            yield f"step, {'elastic' if elastic else 'not elastic'}", cost(elastic)
    elif case == "state":
        change = state(1)
        yield "state of 400 MB at 1 Gbit/s", change.longest()
        yield "state of 400 MB at 1 Gbit/s, more than the cable takes", change.longest() - CABLE_S
        yield TRAINED, change.trained(MAY_TAKE_S)
    elif case == "beside":
        change = state(2)
        yield "state of 400 MB that is on the host", change.longest()
        yield TRAINED_BESIDE, change.trained(MAY_TAKE_S)
    else:
        yield case, CASES[case](library)


def main() -> None:
    """All cases, or some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="all, if none is named")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--libraries", nargs="+", default=list(MEASURED), choices=MEASURED)
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and ends the jobs that it has started
    cases = options.cases or [*CASES, "state", "beside", "cost"]
    found: dict[tuple[str, str], list[float]] = {}
    with (HERE.parent / "results" / "recovery.jsonl").open("w" if options.fresh else "a") as file:
        for case in cases:
            for repeat in range(options.repeats):
                for library in options.libraries:
                    for what, seconds in measure(case, library, repeat) if case in MEASURED[library] else ():
                        unit, factor = ("percent", 100) if what in PERCENT else ("milliseconds", 1000)
                        line = {"case": what, "library": library, unit: round(seconds * factor, 2)}
                        file.write(json.dumps(line) + "\n")
                        file.flush()
                        print(line, flush=True)
                        found.setdefault((what, library), []).append(seconds * factor)
    print("| case | library | ms or % | from | to | times |\n|---|---|---|---|---|---|")
    for (what, library), times in found.items():
        row = f"{statistics.median(times):.1f} | {min(times):.1f} | {max(times):.1f} | {len(times)}"
        print(f"| {what} | {library} | {row} |")


if __name__ == "__main__":
    main()
