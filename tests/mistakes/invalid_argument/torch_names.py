"""Parameters without names are broadcast.

raises: InvalidArgument
words: params | no names | state_dict()
remedy: Pass model.state_dict() or model.named_parameters().
"""

import ringcore_torch as ring
import torch

ring.init()
ring.broadcast_parameters(torch.nn.Linear(4, 3).parameters())
