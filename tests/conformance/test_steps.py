"""No step is lost with a rank, in any adapter, and each is the work of those who were there at its end."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest
from support import ranks

from conformance.steps import TRAINS
from conformance.test_conformance import is_here

INSTALLED = [name for name, (_, modules, _) in TRAINS.items() if is_here(modules)]
SURVIVORS = 2


def trains(kind: str, losses: dict[str, list[int]], steps: int) -> dict:
    import ringcore
    from ringcore import elastic
    from ringcore.job.membership import News
    from ringcore.job.state import context

    from conformance.steps import TRAINS

    ringcore.init()
    place = ringcore.rank()
    now = {"step": -1}

    def die_in_collective() -> None:
        before = ringcore.statistics()["operations"]

        def watch() -> None:
            while True:
                found = ringcore.statistics()
                if found["waits"] or found["operations"] > before:
                    os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()

    def at(moment: str) -> None:
        if losses.get(moment) == [now["step"], place]:
            die_in_collective() if moment == "collective" else os.kill(os.getpid(), signal.SIGKILL)
        elif moment == "step" and losses.get("collective") == [now["step"], place]:
            threading.Event().wait()  # What watches may have had no core all the while.

    class Launcher:
        """Has no news, so that a commit is what it is under ringrun, and nobody comes."""

        evict_slow = None

        def news(self) -> News:
            at("commit")
            return News()

    elastic.state.membership = Launcher
    step, weights = TRAINS[kind][0]()
    state = elastic.ObjectState(step=0)
    members, sizes, heard = [], [], []
    ringcore.on_membership_change(lambda: heard.append(list(context().members)))
    for now["step"] in range(steps):
        step(4.0**place * (now["step"] + 1), at)
        sizes.append(ringcore.size())
        members.append(list(context().members))
        state.step += 1
        state.commit()
    values, bits = weights()
    ringcore.shutdown()
    return {"members": members, "sizes": sizes, "heard": heard, "values": values, "bits": bits}


# PyTorch's in each run: the others' own tests lose a rank there.
@pytest.mark.parametrize(
    "kind",
    [kind if kind == "torch" else pytest.param(kind, marks=pytest.mark.long) for kind in INSTALLED],
)
def test_no_step_is_lost_with_a_rank(kind: str, tmp_path: Path) -> None:
    env = {"RINGCORE_ELASTIC": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    env["KERAS_BACKEND"] = next((name for name in ("tensorflow", "jax", "torch") if is_here((name,))), "")
    moments = TRAINS[kind][2]
    # In which moment of which step which rank is lost.
    losses = {moment: (1 + 2 * i, SURVIVORS + i) for i, moment in enumerate(moments)}
    steps = 1 + 2 * len(moments)
    with ranks.started(trains, SURVIVORS + len(moments), tmp_path, kind, losses, steps, env=env) as job:
        outcomes = job.wait()
    victims = {victim for _, victim in losses.values()}
    for outcome in outcomes:
        wanted = -signal.SIGKILL if outcome.rank in victims else 0
        assert outcome.exit_code == wanted, f"rank {outcome.rank}: {outcome.stderr}"
    first, *others = [outcome.result for outcome in outcomes if outcome.rank not in victims]
    assert all(other == first for other in others)
    members = first["members"]
    assert first["sizes"] == [len(there) for there in members]
    assert first["heard"] == [there for there, _ in itertools.groupby(members)][1:]
    for moment, (step, victim) in losses.items():
        assert victim in members[step - 1] and victim not in members[step + 1]
        if moment != "collective":  # there it may be done already
            assert (victim in members[step]) == (moment != "backward"), moment
    # Played again with the list of members.
    total = -sum(4.0**place * (step + 1) for step, there in enumerate(members) for place in there)
    # An average of five is rounded.
    assert first["values"] == pytest.approx([total] * len(first["values"]), rel=1e-6)
