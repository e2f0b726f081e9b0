"""tianshou DQN on CartPole-v1: vectorised environments, a replay buffer, n-step returns, epsilon set by a hook."""

import random

import gymnasium
import numpy
import torch
from _digest import digest
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

random.seed(5)
numpy.random.seed(5)
torch.manual_seed(5)
torch.set_num_threads(1)
training = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(4)])
test = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(2)])
training.seed(5)
test.seed(6)
space = gymnasium.make("CartPole-v1").action_space
space.seed(5)
net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[32, 32])
policy = DiscreteQLearningPolicy(model=net, action_space=space, eps_training=0.2, eps_inference=0.05)
algorithm = DQN(
    policy=policy, optim=AdamOptimizerFactory(lr=1e-3), gamma=0.9, n_step_return_horizon=3, target_update_freq=20
)
collector = Collector(algorithm, training, VectorReplayBuffer(2000, 4), exploration_noise=True)
collector.reset()
collector.collect(n_step=128)
algorithm.run_training(
    OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=Collector(algorithm, test),
        max_epochs=2,
        epoch_num_steps=160,
        collection_step_num_env_steps=16,
        test_step_num_episodes=2,
        batch_size=32,
        update_step_num_gradient_steps_per_sample=0.25,
        training_fn=lambda epoch, step: policy.set_eps_training(0.2 if step < 100 else 0.1),
        show_progress=False,
        verbose=False,
    )
)
print(digest(algorithm))
