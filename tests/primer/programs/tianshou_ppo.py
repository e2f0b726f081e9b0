"""tianshou PPO on CartPole-v1: actor and critic on one trunk, orthogonal weights, recomputed advantages, clipping."""

import random

import gymnasium
import numpy
import torch
from _digest import digest
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

random.seed(6)
numpy.random.seed(6)
torch.manual_seed(6)
torch.set_num_threads(1)
training = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(4)])
test = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(2)])
training.seed(6)
test.seed(7)
space = gymnasium.make("CartPole-v1").action_space
space.seed(6)
trunk = Net(state_shape=(4,), hidden_sizes=[32, 32])
actor = DiscreteActor(preprocess_net=trunk, action_shape=2)
critic = DiscreteCritic(preprocess_net=trunk)
for module in ActorCritic(actor, critic).modules():
    if isinstance(module, torch.nn.Linear):
        torch.nn.init.orthogonal_(module.weight)
        torch.nn.init.zeros_(module.bias)
policy = DiscreteActorPolicy(
    actor=actor, dist_fn=torch.distributions.Categorical, action_space=space, deterministic_eval=True
)
algorithm = PPO(
    policy=policy,
    critic=critic,
    optim=AdamOptimizerFactory(lr=3e-4),
    max_grad_norm=0.5,
    value_clip=True,
    recompute_advantage=True,
    return_scaling=True,
)
algorithm.run_training(
    OnPolicyTrainerParams(
        training_collector=Collector(algorithm, training, VectorReplayBuffer(1000, 4)),
        test_collector=Collector(algorithm, test),
        max_epochs=2,
        epoch_num_steps=256,
        collection_step_num_env_steps=128,
        update_step_num_repetitions=3,
        batch_size=32,
        test_step_num_episodes=2,
        show_progress=False,
        verbose=False,
    )
)
print(digest(algorithm))
