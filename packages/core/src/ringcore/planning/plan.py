"""A plan with the programs of all ranks, as files have it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ringcore import _native
from ringcore._errors import InvalidArgument

if TYPE_CHECKING:
    from ringcore.network import Topology
    from ringcore.network.prices import Egress


class Plan:
    """What each rank does, step by step, so that together they carry out a collective.

    `Builder` makes one, `Plan.load` and `Plan.parse` read one. `docs/plans.md` describes the forms.
    """

    def __init__(self, native: _native.Plan) -> None:
        self._native = native

    @classmethod
    def parse(cls, data: str | bytes) -> Plan:
        """Read the text form, the binary form, or MSCCL's XML.

        Raises:
            InvalidArgument: It is none of them; the message says where and what to do.
        """
        raw = data.encode() if isinstance(data, str) else data
        if raw.lstrip()[:1] == b"<":
            from ringcore.planning.msccl import parse_msccl

            return cls(parse_msccl(raw))
        return cls(_native.Plan.read(raw))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a file of any of the forms.

        Raises:
            InvalidArgument: It cannot be read, or is no plan; the message begins with its path.
        """
        try:
            return cls.parse(Path(path).read_bytes())
        except OSError as error:
            raise InvalidArgument(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
        except InvalidArgument as error:
            raise InvalidArgument(f"{os.fspath(path)}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the text form, or, where the name ends in `.bin`, the binary form."""
        binary = os.fspath(path).endswith(".bin")
        Path(path).write_bytes(self.to_bytes() if binary else self.to_json().encode())

    def to_json(self) -> str:
        """The text form: JSON, a step a line."""
        return self._native.text()

    def to_bytes(self) -> bytes:
        """The binary form."""
        return self._native.binary()

    def check(self, host_of: Sequence[int] | None = None) -> str | None:
        """What the verifier says.

        Args:
            host_of: By rank, and those who serve behind them: the number of its host. `None`: one each. It matters for
                plans that read other ranks' memory.

        Returns:
            `None` where the plan is right: every rank ends with each contribution exactly once, nothing deadlocks,
            nothing is left over. Else a sentence that says which step of which rank goes wrong.
        """
        return self._native.flaw(list(range(self._native.nodes) if host_of is None else host_of))

    def predict(
        self,
        nbytes: int,
        *,
        bits_per_s: float = 9.6e9,
        latency_s: float = 25e-6,
        message_s: float = 2.8e-6,
        hosts: int | None = None,
        topology: Topology | None = None,
        host_names: Sequence[str] = (),
    ) -> float:
        """How long it takes, by the cost model.

        Args:
            nbytes: Of the data.
            bits_per_s: Of a host's port, each way; as the other two, that of TCP over 10 Gbit/s.
            latency_s: From the last byte's departure to its arrival.
            message_s: What a message costs the processor.
            hosts: On how many the ranks are; `None`: one each, as far as `topology` has them. Those who serve have
                further ones.
            topology: What lies between hosts, instead of `bits_per_s` and `latency_s`: the nodes are on its hosts in
                their order, those who serve beside the ranks where there are no more.
            host_names: By rank, and those who serve behind them: what `topology` calls its host, instead of `hosts`.

        Returns:
            Seconds until the last rank is done.

        Raises:
            InvalidArgument: The plan is wrong, see `check`; or there are no such hosts.
        """
        from ringcore.planning.hosts import place

        where = place(
            self.ranks, self.serving, (latency_s, bits_per_s / 8, []),
            hosts=hosts, topology=topology, host_names=host_names,
        )  # fmt: skip
        return self._native.predict(where.host_of, where.network, message_s, nbytes)

    def egress(
        self, nbytes: int, topology: Topology, *, hosts: int | None = None, host_names: Sequence[str] = ()
    ) -> Egress:
        """What it sends through links that have a price, once.

        Args:
            nbytes: Of the data; nothing is counted as quantised.
            topology: With the prices; the nodes are on its hosts as for `predict`.
            hosts: As for `predict`.
            host_names: As for `predict`.

        Raises:
            InvalidArgument: There are no such hosts.
        """
        from ringcore.network.prices import egress_of
        from ringcore.planning.hosts import place

        names = place(
            self.ranks, self.serving, (0.0, 1.0, []), hosts=hosts, topology=topology, host_names=host_names
        ).names
        whole = json.loads(self.to_json())
        sent = [
            (names[node], names[step["peer"]], len(step["sources"]) * nbytes / self.chunks)
            for node, channels in enumerate(whole["programs"])
            for channel in channels
            for step in channel
            if step["kind"] == "send"
        ]
        return egress_of(topology, sent)

    def program(self, rank: int) -> list[list[str]]:
        """What a rank, or who serves behind them, does in words: the steps of its channels, which run side by side."""
        if not 0 <= rank < self._native.nodes:
            raise InvalidArgument(f"the plan has no rank {rank}: it has 0 to {self._native.nodes - 1}")
        return self._native.program(rank)

    @property
    def native(self) -> _native.Plan:
        """For the engine."""
        return self._native

    @property
    def generator(self) -> str:
        """What its steps are called in timelines and messages."""
        return self._native.generator

    @property
    def collective(self) -> str:
        """What it carries out."""
        return self._native.collective

    @property
    def ranks(self) -> int:
        """How many it is for."""
        return self._native.ranks

    @property
    def serving(self) -> int:
        """How many nodes behind the ranks take part, and have no data of their own."""
        return self._native.nodes - self._native.ranks

    @property
    def root(self) -> int:
        """Of a broadcast, reduce, gather or scatter."""
        return self._native.root

    @property
    def chunks(self) -> int:
        """Into how many the data is divided."""
        return self._native.chunks

    @property
    def steps(self) -> int:
        """Of all ranks together."""
        return self._native.steps

    @property
    def hash(self) -> str:
        """The same for the same plan, whatever form it was read from."""
        return self._native.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.to_bytes() == other.to_bytes()

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        serving = f" and {self.serving} who serve" if self.serving else ""
        nodes = f"{self.ranks} ranks{serving}"
        return f"<Plan {self.generator!r}: {self.collective} among {nodes}, {self.steps} steps, {self.hash}>"
