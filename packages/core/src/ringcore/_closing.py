"""What is closed at the end of a `with`."""

from __future__ import annotations

import abc
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing(abc.ABC):
    """Used in a `with`, it is closed at the end, however that comes."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what this holds."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
