"""Break 3 of lab_gradients: the gradient of the target reaches the target network, and the optimizer moves it."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
online = nn.Linear(4, 2)
target_net = copy.deepcopy(online)
optimizer = torch.optim.Adam([*online.parameters(), *target_net.parameters()], lr=1e-2)
before = target_net.weight.detach().clone()
for step in range(50):
    state, following, reward = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16, 1)
    action = torch.randint(0, 2, (16, 1))
    following_value = target_net(following).max(dim=1, keepdim=True).values  # fault
    loss = F.mse_loss(online(state).gather(1, action), reward + 0.99 * following_value)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"target network moved by {(target_net.weight.detach() - before).norm().item():.6f}")
