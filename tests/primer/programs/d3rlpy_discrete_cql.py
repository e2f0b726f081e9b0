"""d3rlpy DiscreteCQL: offline Q-learning with a conservative term and a hard target, on recorded CartPole steps."""

import random

import d3rlpy
import gymnasium
import numpy
import torch
from _digest import digest

d3rlpy.seed(3)
random.seed(3)
torch.set_num_threads(1)
env = gymnasium.make("CartPole-v1")
env.action_space.seed(3)
observations, actions, rewards, ends = [], [], [], []
observation, _ = env.reset(seed=3)
for _ in range(400):
    action = env.action_space.sample()
    following, reward, terminated, truncated, _ = env.step(action)
    observations.append(observation)
    actions.append([action])
    rewards.append([float(reward)])
    ends.append(float(terminated))
    observation = env.reset()[0] if terminated or truncated else following
ends[-1] = 1.0
dataset = d3rlpy.dataset.MDPDataset(
    numpy.array(observations, dtype=numpy.float32), numpy.array(actions), numpy.array(rewards), numpy.array(ends)
)
encoder = d3rlpy.models.VectorEncoderFactory([32, 32])
config = d3rlpy.algos.DiscreteCQLConfig(batch_size=32, target_update_interval=20, alpha=0.5, encoder_factory=encoder)
learner = config.create(device="cpu:0")
learner.fit(
    dataset,
    n_steps=80,
    n_steps_per_epoch=40,
    logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    show_progress=False,
    evaluators={"td_error": d3rlpy.metrics.TDErrorEvaluator()},
)
print(digest(*learner.impl.modules.get_torch_modules().values()))
