"""Symptom: Q-values grow without bound.  The first argument says how the target is brought up to date."""

import copy
import random
import sys

import torch
from measured import intended, ratio_and_cosine
from torch import nn

HOW = sys.argv[1]
torch.manual_seed(0)
random.seed(0)
STATES = 8


def code(states):
    return nn.functional.one_hot(torch.as_tensor(states), STATES).float()


online = nn.Sequential(nn.Linear(STATES, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(online)
parameters = list(online.parameters())
optimizer = torch.optim.Adam(parameters, lr=5e-3)
measured, replay, state = [], [], 0
for step in range(160):
    action = random.randrange(2)
    following = min(STATES - 1, state + 1) if action else max(0, state - 1)
    done = following == STATES - 1
    replay.append((state, action, float(done), following, done))
    state = 0 if done else following
    if len(replay) < 32:
        continue
    states, actions, rewards, followings, ends = (torch.tensor(v) for v in zip(*random.sample(replay, 32), strict=True))
    values = online(code(states)).gather(1, actions[:, None]).squeeze(1)
    if HOW == "attached":
        wanted_values = rewards + 0.99 * target(code(followings)).max(1).values * (~ends).float()
    else:
        with torch.no_grad():
            wanted_values = rewards + 0.99 * target(code(followings)).max(1).values * (~ends).float()
    loss = nn.functional.smooth_l1_loss(values, wanted_values)
    optimizer.zero_grad()
    wanted = intended(loss, parameters)
    loss.backward()
    measured.append(ratio_and_cosine(parameters, wanted))
    optimizer.step()
    if step % 20 == 0:
        if HOW == "object":
            target = online
        elif HOW == "memory":
            for lagging, leading in zip(target.parameters(), online.parameters(), strict=True):
                lagging.data = leading.data
        else:
            target.load_state_dict(online.state_dict())
# What the page asks the reader to look at.
same_object = target is online
same_memory = next(target.parameters()).data_ptr() == next(online.parameters()).data_ptr()
target_has_gradient = next(target.parameters()).grad is not None
