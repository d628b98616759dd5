"""An array of numpy for the adapter of PyTorch.

raises: InvalidArgument
words: tensor of PyTorch | ndarray
remedy: Pass torch.as_tensor(x), or call ringcore.allreduce, which takes arrays.
"""

import numpy as np
import ringcore_torch as ring

ring.init()
ring.allreduce(np.ones(3, np.float32), name="loss")
