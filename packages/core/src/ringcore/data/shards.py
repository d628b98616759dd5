"""Batches of rows that are in groups, for each rank its part: what all sources have in common."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np

from ringcore.data.columns import CUTS, Block, Memory, blocks_of, check_type, pieces_of
from ringcore.data.deal import Deal, Rule
from ringcore.data.groups import Groups
from ringcore.job import state as job

WINDOW_ROWS = 65536


class Shards:
    """Batches of rows, each once an epoch, over all ranks. Whoever iterates again goes on where it has stopped.

    Args:
        groups: The rows.
        batch_size: Rows of a batch, of this rank.
        columns: Their names; None: all.
        rank: This rank; None: of the job.
        size: Number of ranks; None: of the job.
        shuffle: Whether to shuffle.
        window_rows: How many rows are shuffled among themselves.
        seed: What the shuffle follows from.
        uneven: "pad" or "join".
        tensors: What batches hold.

    Raises:
        ValueError: A column is not there or not numeric, or a number is wrong.
    """

    def __init__(
        self,
        groups: Groups,
        batch_size: int,
        columns: Sequence[str] | None = None,
        *,
        rank: int | None = None,
        size: int | None = None,
        shuffle: bool = True,
        window_rows: int = WINDOW_ROWS,
        seed: int = 0,
        uneven: Literal["pad", "join"] = "pad",
        tensors: Literal["numpy", "torch", "tensorflow"] = "numpy",
    ) -> None:
        self._rank = job.rank() if rank is None else rank
        size = job.size() if size is None else size
        _check(batch_size, window_rows, self._rank, size, uneven, tensors)
        self._groups = groups
        self._columns = self._groups.leaves(columns)
        for name, kind in self._columns.items():
            check_type(name, kind)
        window = -(-window_rows // batch_size) * batch_size if shuffle else 0
        self._rule = Rule(size, batch_size, window)
        self._padded = uneven == "pad"
        self._cut_block = CUTS[tensors]
        self._memory = Memory()
        self._seed = seed
        self.set_epoch(0)

    @property
    def rows(self) -> int:
        """Rows of the data set."""
        return sum(self._groups.counts)

    @property
    def epoch(self) -> int:
        """The epoch that the next batch is of."""
        return self._epoch

    def set_epoch(self, epoch: int, batch: int = 0) -> None:
        """Go to an epoch, and in it to a batch."""
        self._epoch = epoch
        self._had: list[tuple[Rule, int]] = []  # earlier deals of this epoch, and how many batches each rank had
        self._batches = batch
        self._deal = self._dealt()

    def __len__(self) -> int:
        """This rank's batches in the epoch, or in what was left of it when the number of ranks has changed."""
        return self._deal.batches(self._rank, padded=self._padded)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """What is left of the epoch."""
        spans = self._deal.windows(self._batches, self._rank, padded=self._padded)
        skip = self._batches * self._rule.batch_size - (spans[0][0] if spans else 0)
        # One window is used while the next is read.
        reader = ThreadPoolExecutor(1, "ringcore-data")
        try:
            ahead = (reader.submit(self._read, span) for span in spans)
            loading = next(ahead, None)
            while loading is not None:
                blocks = loading.result()
                loading = next(ahead, None)
                for batch in self._cut(blocks, skip):
                    self._batches += 1
                    yield batch
                skip = 0
        finally:
            # Its thread is not waited for: the garbage collector ends a loop that was left early, maybe while this very
            # thread holds the lock that the end of another needs.
            reader.shutdown(wait=False, cancel_futures=True)
        self.set_epoch(self._epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Where this is in the epoch: for a checkpoint, and the same on all ranks that have had as many batches."""
        had = [*self._had, (self._rule, self._batches)]
        return {"seed": self._seed, "epoch": self._epoch, "rows": self.rows, "had": [[*rule, n] for rule, n in had]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken. With another number of ranks, or batch size, what is left is dealt anew.

        Raises:
            ValueError: The state is of other data.
        """
        if state["rows"] != self.rows:
            raise ValueError(
                f"the position is one in {state['rows']} rows, and the data has {self.rows}: it has changed, or is "
                "other data"
            )
        self._seed = state["seed"]
        self.set_epoch(state["epoch"])
        had = [(Rule(*rule), batches) for *rule, batches in state["had"]]
        self._batches = had.pop()[1] if had and had[-1][0] == self._rule else 0
        self._had = had
        self._deal = self._dealt()

    def _dealt(self) -> Deal:
        """The deal that the epoch is at."""
        line = self._groups.line(np.random.default_rng([self._seed, self._epoch]) if self._rule.window_rows else None)
        for number, (rule, batches) in enumerate(self._had):
            line = Deal(line, rule, (self._seed, self._epoch, number)).rest(batches, padded=self._padded)
        return Deal(line, self._rule, (self._seed, self._epoch, len(self._had)))

    def _read(self, span: tuple[int, int]) -> list[Block]:
        """A window's columns, with rows in the order in which they are handed out."""
        window = self._deal.window(span, self._rank)
        table, where = self._groups.read(window.rows, list(self._columns))
        columns = {name: pieces_of(name, table[name], where) for name in self._columns}
        if window.order is None and not self._groups.writable:
            # A write would end the process.
            columns = {name: [piece.copy() for piece in pieces] for name, pieces in columns.items()}
        return blocks_of(columns, window.order, self._memory)

    def _cut(self, blocks: Sequence[Block], skip: int) -> Iterator[dict[str, Any]]:
        names = [name for block in blocks for name in block.names]
        batches = zip(
            *(self._cut_block(block.array[:, skip:], self._rule.batch_size) for block in blocks), strict=True
        )  # fmt: skip
        for batch in batches:
            found = dict(zip(names, itertools.chain.from_iterable(batch), strict=True))
            yield {name: found[name] for name in self._columns} if len(blocks) > 1 else found


def _check(batch_size: int, window_rows: int, rank: int, size: int, uneven: str, tensors: str) -> None:
    if batch_size < 1 or window_rows < 1:
        raise ValueError(f"batch_size={batch_size} and window_rows={window_rows} must be at least 1")
    if not 0 <= rank < size:
        raise ValueError(f"there is no rank {rank} of {size}")
    if uneven not in ("pad", "join"):
        raise ValueError(f'uneven is "pad" or "join", not {uneven!r}')
    if tensors not in CUTS:
        raise ValueError(f"tensors is one of {', '.join(CUTS)}, not {tensors!r}")
