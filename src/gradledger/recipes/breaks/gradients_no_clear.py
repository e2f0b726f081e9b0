"""Break 2 of lab_gradients: fifty steps without a clear."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(42)
policy = nn.Linear(6, 6)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
for step in range(50):
    loss = F.mse_loss(policy(torch.randn(8, 6)), torch.randn(8, 6))
    loss.backward()  # fault
    optimizer.step()
print(f"final loss {loss.item():.4f}")
