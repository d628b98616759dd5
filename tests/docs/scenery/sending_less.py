"""A model, its optimizer, and an array."""

import numpy as np
import ringcore
import torch

ringcore.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
array = np.ones(1000, np.float32)
