"""LBFGS with a closure, a GAN with two optimizers, several losses over one trunk."""

import torch
import torch.nn.functional as F
from digest import show
from torch import nn

torch.manual_seed(10)
model = nn.Linear(3, 1)
x, y = torch.randn(10, 3), torch.randn(10, 1)
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
calls = 0


def closure():
    global calls
    calls += 1
    lbfgs.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(3):
    print(lbfgs.step(closure).item(), calls)

generator, critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)), nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(), nn.Linear(8, 1))
g_optimizer = torch.optim.RMSprop(generator.parameters(), lr=0.01)
c_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01, betas=(0.5, 0.9))
for _ in range(4):
    fake = generator(torch.randn(6, 2))
    c_optimizer.zero_grad()
    mixed = (0.5 * x[:6] + 0.5 * fake.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    loss = critic(fake.detach()).mean() - critic(x[:6]).mean() + 10 * (slope.norm(2, 1) - 1).pow(2).mean()
    loss.backward()
    c_optimizer.step()
    g_optimizer.zero_grad()
    g_loss = -critic(fake).mean()
    g_loss.backward()
    g_optimizer.step()
    print(loss.item(), g_loss.item())

trunk, heads = nn.Linear(3, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 2)])
sgd = torch.optim.SGD([{"params": trunk.parameters(), "lr": 0.1}, {"params": heads.parameters()}], lr=0.01)
for _ in range(3):
    sgd.zero_grad()
    h = torch.relu(trunk(x))
    a = F.mse_loss(heads[0](h), y)
    b = F.cross_entropy(heads[1](h), (y[:, 0] > 0).long())
    a.backward(retain_graph=True)
    first = [p.grad.clone() for p in trunk.parameters()]
    b.backward()
    sgd.step()
show(model=model, lbfgs=lbfgs, generator=generator, critic=critic, c=c_optimizer, g=g_optimizer, heads=heads, first=first)
