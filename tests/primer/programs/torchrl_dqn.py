"""torchrl DQNLoss with a hard target update on CartPole-v1, after the library's DQN tutorial."""

import random

import numpy
import torch
from _digest import digest
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueModule
from torchrl.objectives import DQNLoss, HardUpdate

random.seed(2)
numpy.random.seed(2)
torch.manual_seed(2)
torch.set_num_threads(1)
env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
env.set_seed(2)
net = TensorDictModule(MLP(in_features=4, out_features=2, num_cells=[32]), in_keys=["observation"], out_keys=["action_value"])
policy = TensorDictSequential(net, QValueModule(spec=env.action_spec))
explore = EGreedyModule(env.action_spec, annealing_num_steps=500, eps_init=0.9)
collector = Collector(
    env, TensorDictSequential(policy, explore), frames_per_batch=20, total_frames=300, init_random_frames=100
)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
objective = DQNLoss(policy, action_space=env.action_spec, delay_value=True, double_dqn=True)
objective.make_value_estimator(gamma=0.99)
optimizer = torch.optim.Adam(objective.parameters(), lr=1e-3)
updater = HardUpdate(objective, value_network_update_interval=10)
for data in collector:
    buffer.extend(data)
    if len(buffer) < 100:
        continue
    for _ in range(2):
        loss = objective(buffer.sample())["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updater.step()
    explore.step(data.numel())
collector.shutdown()
print(digest(objective))
