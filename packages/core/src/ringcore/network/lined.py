"""JSON whose objects know in which line they begin, so that what is wrong with one can be found in a file."""

from __future__ import annotations

import json
from typing import Any

_SPACE = {" ", "\t", "\r", "\n"}
_MOST_DEPTH = 16
_scalar = json.JSONDecoder().raw_decode


class LinedObject(dict[str, Any]):
    """An object.

    Attributes:
        line: In which it begins, from 1 on.
        line_of: Of each key.
    """

    line: int
    line_of: dict[str, int]


class Reader:
    """Reads one text.

    Args:
        text: All of it.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> Any:
        """The value that the text is.

        Raises:
            json.JSONDecodeError: It is none, or an object has a key twice.
        """
        value = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise self._error("nothing more is expected")
        return value

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _error(self, message: str) -> json.JSONDecodeError:
        return json.JSONDecodeError(message, self._text, self._at)

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1] in _SPACE:
            self._at += 1

    def _takes(self, character: str) -> bool:
        self._skip()
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True

    def _value(self, depth: int) -> Any:
        self._skip()
        if depth > _MOST_DEPTH:
            raise self._error("this is nested too deeply")
        if self._text.startswith("{", self._at):
            return self._object(depth)
        if self._takes("["):
            return self._list(depth)
        try:
            value, self._at = _scalar(self._text, self._at)
        except json.JSONDecodeError:
            raise
        except ValueError:  # Python reads no integer of thousands of digits
            raise self._error("this number is too long") from None
        return value

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        if self._takes("]"):
            return values
        while True:
            values.append(self._value(depth + 1))
            if self._takes("]"):
                return values
            if not self._takes(","):
                raise self._error("',' or ']' is expected")

    def _object(self, depth: int) -> LinedObject:
        found = LinedObject()
        found.line, found.line_of = self._line(), {}
        self._at += 1
        if self._takes("}"):
            return found
        while True:
            self._skip()
            if not self._text.startswith('"', self._at):
                raise self._error("a key in quotes is expected")
            line, start = self._line(), self._at
            key, self._at = _scalar(self._text, self._at)
            if key in found:
                self._at = start
                raise self._error(f"{key!r} is there twice")
            if not self._takes(":"):
                raise self._error("':' is expected")
            found[key], found.line_of[key] = self._value(depth + 1), line
            if self._takes("}"):
                return found
            if not self._takes(","):
                raise self._error("',' or '}' is expected")
