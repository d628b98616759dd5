"""Loaders of data, of which scripts derive their own, and one that reads ahead in a thread."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """Gives the batches of an epoch; subclasses read them."""

    def __len__(self) -> int:
        raise NotImplementedError

    def _iterate(self) -> Iterable[Any]:
        """The batches of an epoch as they are read."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """The batch as the training loop takes it."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Reads the batches of an epoch in a thread, before they are asked for; write it before the loader's class.

    Args:
        async_loader_queue_size: So many batches may wait; 0: read no batch before it is asked for.
        debug_data_loader: Print which batch is taken.
        args: The loader's.
        options: The loader's.
    """

    _iterate: Callable[[], Iterable[Any]]
    _process_batch: Callable[[Any], Any]

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **options: Any
    ) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._reader: _Reader | None = None
        super().__init__(*args, **options)

    def __iter__(self) -> Iterator[Any]:
        self.close_async_loader()
        if self.async_loader_queue_size > 0:
            self._reader = _Reader(self._iterate, self.async_loader_queue_size)
        for index, batch in enumerate(self._reader or self._iterate()):
            if self.debug_data_loader:
                print(f"batch {index} of {self.async_loader_queue_size} that may wait")
            yield self._process_batch(batch)

    def close_async_loader(self) -> None:
        """End the thread; what it has read and nobody has taken is dropped."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class _Reader:
    """A thread that reads ahead, until it has read all, or `close`."""

    def __init__(self, read: Callable[[], Iterable[Any]], limit: int) -> None:
        self._limit = limit
        self._waiting: collections.deque[Any] = collections.deque()
        self._error: BaseException | None = None
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(read,), name="horovod-data", daemon=True)
        self._thread.start()

    def _run(self, read: Callable[[], Iterable[Any]]) -> None:
        try:
            for batch in read():
                with self._changed:
                    self._changed.wait_for(lambda: self._ended or len(self._waiting) < self._limit)
                    if self._ended:
                        return
                    self._waiting.append(batch)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or bool(self._waiting))
                if not self._waiting:
                    break
                batch = self._waiting.popleft()
                self._changed.notify_all()
            yield batch
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()
