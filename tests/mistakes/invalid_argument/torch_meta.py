"""A tensor without memory.

raises: InvalidArgument
words: allreduce 'weight' | meta | CPU
remedy: Materialize the model first: model.to_empty(device=...), and load or broadcast its state.
"""

import ringcore_torch as ring
import torch

ring.init()
ring.allreduce(torch.ones(3, device="meta"), name="weight")
