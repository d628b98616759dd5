"""What a training function has to keep: saved at a commit, restored after a loss, and given to those that come."""

from __future__ import annotations

import copy
import dataclasses
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from ringcore._errors import RingcoreError
from ringcore.adapter.objects import broadcast_object
from ringcore.elastic.sampler import ElasticSampler
from ringcore.elastic.stragglers import Stragglers
from ringcore.job import members
from ringcore.job.agreement import await_devices, gather_bytes
from ringcore.job.handover import Handover
from ringcore.job.membership import membership
from ringcore.job.process_sets import ProcessSet, global_process_set
from ringcore.job.state import context, rank

# What ranks tell each other at a commit: these, with how long each has worked, where somebody looks for stragglers.
# Behind it are the places of those who want to join.
_COMES, _GOES, _LEAVES = 1, 2, 4
_NEWS = struct.Struct("=Bd")

# Horovod's name for whatever ends a collective: `run` catches it and goes back, and scripts raise it to start over.
HorovodInternalError = RingcoreError


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks come or go, and all that are there have made the same commit: `run` meets them again, and goes on.

    Args:
        skip_sync: Nobody comes who needs the state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("ranks come or go; ringcore.elastic.run goes on with those that are there")
        self.skip_sync = skip_sync


class JoinedInterrupt(HostsUpdatedInterrupt):
    """Others have joined, and nobody has to meet anybody: `run` gives them the state, and goes on."""


class PartedInterrupt(HostsUpdatedInterrupt):
    """Others have left, and nobody has to meet anybody or needs the state: `run` goes on."""

    def __init__(self) -> None:
        super().__init__(skip_sync=True)


class _HostMessages:
    """Scripts for Horovod look here whether there is news of hosts."""

    def empty(self) -> bool:
        launcher = membership()
        if launcher is None:
            return True
        joins = context().launcher is not None and context().runtime.arrivals()  # The launcher tells nothing of these.
        return not (launcher.news() or joins)


class State:
    """What a training function has to keep: subclasses save, restore and broadcast it.

    Args:
        bcast_object: Gives all ranks the object of rank 0; None: `ringcore.broadcast_object`.
        get_rank: This process's rank; None: `ringcore.rank`.
    """

    sync_among: ProcessSet = global_process_set  # Rank 0, and those who need its state.
    # While it is given to some: with those who send shares of it, for what can be sent in shares.
    handover: Handover | None = None

    def __init__(
        self, bcast_object: Callable[[Any], Any] | None = None, get_rank: Callable[[], int] | None = None
    ) -> None:
        self._bcast_object = bcast_object or broadcast_object
        self._rank = get_rank or rank
        self._host_messages = _HostMessages()
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._stragglers: Stragglers | None = None

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Functions to call when ranks have come or gone: they fit what depends on their number."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Ranks have come or gone."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Ranks are about to come or go.

        Args:
            timestamp: When this was learnt.
            update_res: 1 where some come, 2 where some go, 3 where both.
        """

    def commit(self) -> None:
        """Save the state, and see whether ranks come or go. Collective."""
        await_devices()
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """See whether ranks come or go. Collective, as all must leave their work in the same place.

        Raises:
            HostsUpdatedInterrupt: They do. On every rank; it is meant for `run`.
        """
        await_devices()  # Whoever comes takes over what is there then.
        launcher = membership()
        if launcher is None:
            return
        news = launcher.news()
        for place in members.newcomers_given_up():
            launcher.give_up(place)
        goes_on = context().launcher is not None  # The engine does, without who leaves and with who comes.
        own = _COMES * news.comes | _GOES * (news.goes or (news.leaves and not goes_on)) | _LEAVES * news.leaves
        told, leaving = 0, []
        if self._stragglers is None and launcher.evict_slow is not None:
            self._stragglers = Stragglers(launcher.evict_slow)
        worked_s = 0.0 if self._stragglers is None else self._stragglers.end_step()
        news_of_this = _NEWS.pack(own, worked_s) + members.pack_arrivals()
        parts = gather_bytes(news_of_this, context().next_name("elastic.news"))
        said = [_NEWS.unpack_from(part) for part in parts]
        everywhere = members.arrived_everywhere([part[_NEWS.size :] for part in parts])
        for place, (flags, _) in zip(context().members, said, strict=True):  # Some may have been lost.
            told |= flags
            if flags & _LEAVES:
                leaving.append(place)
        if self._stragglers is not None:
            self._stragglers.begin_step()
            found = self._stragglers.find(context().epoch, [seconds for _, seconds in said])
            if found is not None and found[0] == context().rank:
                launcher.tell_slow(found[1])
        if told == _LEAVES:
            members.part_with(leaving)
            self.on_hosts_updated(time.time(), _GOES)
            raise HostsUpdatedInterrupt(skip_sync=True) if news.leaves else PartedInterrupt
        if everywhere and not told and members.let_in(min(everywhere)):
            self.on_hosts_updated(time.time(), _COMES)
            raise JoinedInterrupt
        if told:
            self.on_hosts_updated(time.time(), (_COMES * bool(told & _COMES)) | (_GOES * bool(told & ~_COMES)))
            raise HostsUpdatedInterrupt(skip_sync=not told & _COMES)

    def describe(self) -> dict[str, str]:
        """What is kept, by name: its kind and shape, which must be the same on all ranks."""
        return {}

    def outline(self) -> str:
        """What this rank would broadcast in a `Handover`: those that would do the same as rank 0 send shares of it.

        Where it is empty rank 0 alone sends what there is.
        """
        return ""

    def save(self) -> None:
        """Keep the state in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the state that was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give the state of rank 0 to all ranks, or to those of `sync_among`. Collective: all ranks call it.

        A state that has an `outline` broadcasts what can be large in `handover`, where that is not None: on those that
        are in `sync_among`, and on those where it says `gives`, for the root that it names.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Fit what depends on the number of ranks."""


@dataclasses.dataclass(frozen=True)
class Handler:
    """How values of a kind are kept that are more than an object to pickle.

    Attributes:
        save: Makes what is kept of a value. It also gets what was kept before, whose memory it may use; None at first.
        restore: Puts what was kept back into the value.
        sync: Starts to give the value of rank 0 to all ranks of `process_set`, a keyword. What it returns, if anything,
            is called to wait for that; and this returns memory for `save`, where it had time to make some, or None.
        reset: Fits the value to the number of ranks.
        describe: Says what is in the value, by name: see `State.describe`.
        outline: Says which tensors `sync` would broadcast, see `State.outline`. Such a `sync` takes a `Handover` for
            the process set, and the root as `root_rank`. None: rank 0 alone sends the value.
    """

    save: Callable[[Any, Any], Any]
    restore: Callable[[Any, Any], object]
    sync: Callable[..., object]
    reset: Callable[[Any], object] = lambda _: None
    describe: Callable[[Any], dict[str, str]] = lambda _: {}
    outline: Callable[[Any], str] | None = None


_OF_SAMPLERS = Handler(
    save=lambda sampler, _: sampler.state_dict(),
    restore=ElasticSampler.load_state_dict,
    sync=lambda sampler, process_set: sampler.load_state_dict(
        broadcast_object(sampler.state_dict(), process_set=process_set)
    ),
    reset=ElasticSampler.reset,
)


class ObjectState(State):
    """A state of objects, which are its attributes: what can be pickled, samplers, and what subclasses handle.

    Args:
        bcast_object: See `State`.
        get_rank: See `State`.
        attributes: By name, what they are at first; the same names in the same order on all ranks.
    """

    def __init__(
        self, bcast_object: Callable[[Any], Any] | None = None, get_rank: Callable[[], int] | None = None,
        **attributes: Any,
    ) -> None:  # fmt: skip
        super().__init__(bcast_object, get_rank)
        self._handlers: dict[str, Handler] = {}
        self._kept: dict[str, Any] = {}
        self._room: dict[str, Any] = {}  # in place of what was kept, for whoever has kept nothing yet
        for name, value in attributes.items():
            handler = self.handler_of(value)
            if handler is not None:
                self._handlers[name] = handler
            setattr(self, name, value)
        self._saved_state = {name: value for name, value in attributes.items() if name not in self._handlers}
        ObjectState.save(self)

    def handler_of(self, value: Any) -> Handler | None:
        """How an attribute is kept; None: as it is."""
        return _OF_SAMPLERS if isinstance(value, ElasticSampler) else None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        handler = vars(self).get("_handlers", {}).get(name)
        if handler is not None:  # Another model, say, takes the place of the one that was kept.
            self._kept[name] = handler.save(value, self._kept.get(name))

    def describe(self) -> dict[str, str]:  # noqa: D102
        told = dict.fromkeys(self._saved_state, "an object")
        for name, handler in self._handlers.items():
            told |= {f"{name}: {part}": text for part, text in handler.describe(getattr(self, name)).items()}
        return told

    def outline(self) -> str:  # noqa: D102
        of_handlers = [(name, handler.outline) for name, handler in self._handlers.items()]
        return "; ".join(
            f"{name}: {outline(getattr(self, name))}" for name, outline in of_handlers if outline is not None
        )

    def save(self) -> None:  # noqa: D102
        for name, handler in self._handlers.items():
            self._kept[name] = handler.save(getattr(self, name), self._room.pop(name, self._kept.get(name)))
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in self._saved_state}

    def restore(self) -> None:  # noqa: D102
        for name, handler in self._handlers.items():
            handler.restore(getattr(self, name), self._kept[name])
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self) -> None:  # noqa: D102
        own = {name: getattr(self, name) for name in self._saved_state}
        takes_part = self.sync_among.included()
        coming = {}
        for name, handler in self._handlers.items():
            if self.handover is not None and handler.outline is not None:
                if takes_part or self.handover.gives:
                    root = self.handover.root
                    coming[name] = handler.sync(getattr(self, name), process_set=self.handover, root_rank=root)
            elif takes_part:
                coming[name] = handler.sync(getattr(self, name), process_set=self.sync_among)
        if own and self._bcast_object is not broadcast_object:  # It knows of no process sets.
            own = self._bcast_object(own)
        elif own and takes_part:
            own = broadcast_object(own, process_set=self.sync_among)
        rooms = {name: wait() for name, wait in coming.items() if callable(wait)}
        if not takes_part:
            return
        self._room.update({name: room for name, room in rooms.items() if room is not None})
        for name, value in own.items():
            setattr(self, name, value)
        await_devices()
        self.save()

    def reset(self) -> None:  # noqa: D102
        for name, handler in self._handlers.items():
            handler.reset(getattr(self, name))
