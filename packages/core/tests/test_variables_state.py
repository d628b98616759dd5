"""What a state of variables says that it has, before it is given to others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from ringcore.elastic import VariablesState


class Variable:
    """As frameworks have them."""

    def __init__(self, value: Any, dtype: object) -> None:
        self._value = np.array(value)
        self.dtype, self.shape = dtype, self._value.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._value


def test_variables_are_told_by_number_and_text_is_not() -> None:
    # Keras tells a dtype by its name, TensorFlow by an object.
    variables = [
        Variable(np.zeros((2, 3), np.float32), "float32"),
        Variable(["a", "table"], SimpleNamespace(name="string")),
        Variable(7, SimpleNamespace(name="int64")),
    ]
    state = VariablesState(lambda: variables, lambda *_, **__: None, step=0)
    assert state.describe() == {
        "step": "an object",
        "variable 0": "float32 of shape (2, 3)",
        "variable 2": "int64 of shape ()",
    }
    outline = state.outline()
    variables[0] = Variable(np.zeros((3, 2), np.float32), "float32")
    assert state.outline() != outline, "shares of these would not fit together"
