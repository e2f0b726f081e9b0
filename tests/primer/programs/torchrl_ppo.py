"""torchrl ClipPPOLoss with GAE on Pendulum-v1: the loop of the library's README with its collector and buffer."""

import random

import numpy
import torch
from _digest import digest
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data.replay_buffers import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs.libs.gym import GymEnv
from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
env = GymEnv("Pendulum-v1")
env.set_seed(1)
net = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2), NormalParamExtractor())
actor = ProbabilisticActor(
    TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]), in_keys=["loc", "scale"],
    distribution_class=TanhNormal, distribution_kwargs={"low": -2.0, "high": 2.0}, return_log_prob=True, spec=env.action_spec,
)  # fmt: skip
critic = ValueOperator(nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1)), in_keys=["observation"])
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(), batch_size=25)
collector = Collector(env, actor, frames_per_batch=100, total_frames=200)
objective = ClipPPOLoss(actor, critic, entropy_coeff=0.01)
advantage = GAE(value_network=critic, average_gae=True, gamma=0.99, lmbda=0.95)
optimizer = torch.optim.Adam(objective.parameters(), lr=3e-4)
for data in collector:
    for _ in range(2):
        advantage(data)
        buffer.extend(data.reshape(-1))
        for sample in buffer:
            losses = objective(sample)
            loss = sum(value for key, value in losses.items() if key.startswith("loss"))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
collector.shutdown()
print(digest(actor, critic))
