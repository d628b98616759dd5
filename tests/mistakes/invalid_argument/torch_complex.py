"""An allreduce of complex numbers in PyTorch.

raises: InvalidArgument
words: allreduce 'spectrum' | complex64 | float32
remedy: Pass torch.view_as_real(x).
"""

import ringcore_torch as ring
import torch

ring.init()
ring.allreduce(torch.ones(3, dtype=torch.complex64), name="spectrum")
