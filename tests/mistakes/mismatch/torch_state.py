"""Parameters of another shape are broadcast.

raises: MismatchError
words: 'broadcast_parameters.weight' | [3, 4] | [4, 4] | rank 1
remedy: Build the same model on all ranks.
"""

import ringcore_torch as ring
import torch

ring.init()
model = torch.nn.Linear(4, 3 + ring.rank())
ring.broadcast_parameters(model.state_dict())
