"""The collectives: on arrays at once, and inside `jit`, `grad`, `scan` and `vmap` as calls of the compiled program.

Every verb takes an array or a pytree of arrays; the leaves of a pytree are one operation, which runs as a whole or not
at all. On arrays the engine works at once, and what goes wrong is one of ringcore's exceptions. In a compiled program
XLA runs it, and its exception (`jax.errors.JaxRuntimeError`) carries the engine's message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ringcore import InvalidArgument, adapter, as_buffer
from ringcore._buffer import empty, from_bytes
from ringcore._context import ProcessSet, global_process_set
from ringcore._operations import Average, name_or_next
from ringcore.adapter import Buffer, Handle, ReduceOp, process_set_id_of

from ringcore_jax._calls import Call, check_dtype, run
