"""torchrl SACLoss on Pendulum-v1: two critics by vmap, soft targets, a learned entropy coefficient, three optimizers."""

import random

import numpy
import torch
from _digest import digest
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

random.seed(3)
numpy.random.seed(3)
torch.manual_seed(3)
torch.set_num_threads(1)
env = GymEnv("Pendulum-v1")
env.set_seed(3)
net = nn.Sequential(MLP(in_features=3, out_features=2, num_cells=[32]), NormalParamExtractor())
actor = ProbabilisticActor(
    TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]), in_keys=["loc", "scale"],
    distribution_class=TanhNormal, distribution_kwargs={"low": -2.0, "high": 2.0}, spec=env.action_spec,
)  # fmt: skip
critic = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[32]), in_keys=["observation", "action"])
objective = SACLoss(actor, critic, num_qvalue_nets=2, loss_function="l2", delay_actor=False, delay_qvalue=True)
objective.make_value_estimator(gamma=0.99)
updater = SoftUpdate(objective, eps=0.99)
actor_optimizer = torch.optim.Adam(list(objective.actor_network_params.flatten_keys().values()), lr=3e-4)
critic_optimizer = torch.optim.Adam(list(objective.qvalue_network_params.flatten_keys().values()), lr=3e-4)
alpha_optimizer = torch.optim.Adam([objective.log_alpha], lr=3e-4)
collector = Collector(env, actor, frames_per_batch=20, total_frames=240, init_random_frames=100)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
for data in collector:
    buffer.extend(data.reshape(-1))
    if len(buffer) < 100:
        continue
    for _ in range(3):
        losses = objective(buffer.sample())
        for name, optimizer in (
            ("loss_actor", actor_optimizer), ("loss_qvalue", critic_optimizer), ("loss_alpha", alpha_optimizer)
        ):  # fmt: skip
            losses[name].backward(retain_graph=False)
            optimizer.step()
            optimizer.zero_grad()
        updater.step()
collector.shutdown()
print(digest(objective))
