"""A small DQN and a policy gradient: deepcopied targets, syncs, polyak averages, replay, distributions, numpy in between."""

import copy
import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from digest import show
from torch import nn
from torch.distributions import Categorical, Normal

random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target = copy.deepcopy(q)
soft = copy.deepcopy(q).requires_grad_(False)
actor, log_std = nn.Linear(4, 2), nn.Parameter(torch.zeros(2))
optimizer = torch.optim.Adam(q.parameters(), lr=0.01)
actor_optimizer = torch.optim.Adam([*actor.parameters(), log_std], lr=0.01)
replay = deque(maxlen=32)
state = np.zeros(4, dtype=np.float32)
for step in range(20):
    with torch.no_grad():
        action = int(q(torch.from_numpy(state)).argmax()) if random.random() > 0.3 else random.randrange(2)
    following = (0.9 * state + np.random.randn(4) * 0.1 + action * 0.1).astype(np.float32)
    replay.append((state, action, float(following.sum()), following, step % 10 == 9))
    state = following
    if len(replay) >= 8:
        s, a, r, n, d = zip(*random.sample(list(replay), 8))
        s, n = torch.tensor(np.stack(s)), torch.as_tensor(np.stack(n))
        a, r, d = torch.tensor(a), torch.tensor(r), torch.tensor(d, dtype=torch.float32)
        with torch.no_grad():
            goal = r + 0.99 * (1 - d) * target(n).gather(1, q(n).argmax(1, keepdim=True)).squeeze(1)
        loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(q.parameters(), 1.0)
        optimizer.step()
        for slow, fast in zip(soft.parameters(), q.parameters()):
            slow.data.copy_(0.99 * slow.data + 0.01 * fast.data)
        mean = actor(s)
        policy = Normal(mean, log_std.exp())
        drawn = policy.sample()
        actor_loss = -(policy.log_prob(drawn).sum(-1) * (r - r.mean())).mean() - 0.01 * policy.entropy().mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        print(step, loss.item(), actor_loss.item(), Categorical(logits=q(s)).sample().tolist())
    if step % 5 == 4:
        target.load_state_dict(q.state_dict())
show(q=q, target=target, soft=soft, actor=actor, optimizer=optimizer)
