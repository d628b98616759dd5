"""An allreduce of a sparse tensor.

raises: InvalidArgument
words: allreduce 'embedding' | sparse | to_dense()
remedy: Pass tensor.to_dense(), or use sparse_allreduce_async.
"""

import ringcore_torch as ring
import torch

ring.init()
ring.allreduce(torch.eye(3).to_sparse(), name="embedding")
