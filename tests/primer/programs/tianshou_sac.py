"""tianshou SAC on Pendulum-v1: a probabilistic actor, two critics with optimizers of their own, a learned temperature."""

import random

import gymnasium
import numpy
import torch
from _digest import digest
from tianshou.algorithm import SAC
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic

random.seed(7)
numpy.random.seed(7)
torch.manual_seed(7)
torch.set_num_threads(1)
training = DummyVectorEnv([lambda: gymnasium.make("Pendulum-v1") for _ in range(2)])
test = DummyVectorEnv([lambda: gymnasium.make("Pendulum-v1")])
training.seed(7)
test.seed(8)
space = gymnasium.make("Pendulum-v1").action_space
space.seed(7)
actor = ContinuousActorProbabilistic(
    preprocess_net=Net(state_shape=(3,), hidden_sizes=[32, 32]), action_shape=(1,), unbounded=True, conditioned_sigma=True
)


def critic() -> ContinuousCritic:
    return ContinuousCritic(preprocess_net=Net(state_shape=(3,), action_shape=(1,), hidden_sizes=[32, 32], concat=True))


adam = AdamOptimizerFactory(lr=1e-3)
algorithm = SAC(
    policy=SACPolicy(actor=actor, action_space=space),
    policy_optim=adam,
    critic=critic(),
    critic_optim=adam,
    critic2=critic(),
    critic2_optim=adam,
    alpha=AutoAlpha(-1.0, 0.0, AdamOptimizerFactory(lr=3e-4)),
    n_step_return_horizon=1,
)
collector = Collector(algorithm, training, VectorReplayBuffer(2000, 2), exploration_noise=True)
collector.reset()
collector.collect(n_step=80, random=True)
algorithm.run_training(
    OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=Collector(algorithm, test),
        max_epochs=1,
        epoch_num_steps=60,
        collection_step_num_env_steps=2,
        test_step_num_episodes=1,
        batch_size=32,
        update_step_num_gradient_steps_per_sample=0.5,
        show_progress=False,
        verbose=False,
    )
)
print(digest(algorithm))
