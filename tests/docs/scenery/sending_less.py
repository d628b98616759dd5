"""A model, and an inner optimizer."""

import ringcore
import torch

ringcore.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
