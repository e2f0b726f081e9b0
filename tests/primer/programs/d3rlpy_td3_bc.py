"""d3rlpy TD3+BC: an offline actor held to the data, twin critics, a delayed actor, normalised observations."""

import random

import d3rlpy
import gymnasium
import numpy
import torch
from _digest import digest

d3rlpy.seed(4)
random.seed(4)
torch.set_num_threads(1)
env = gymnasium.make("Pendulum-v1")
env.action_space.seed(4)
observations, actions, rewards, timeouts = [], [], [], []
observation, _ = env.reset(seed=4)
for _ in range(400):
    action = env.action_space.sample()
    following, reward, terminated, truncated, _ = env.step(action)
    observations.append(observation)
    actions.append(action)
    rewards.append([float(reward)])
    timeouts.append(float(truncated))
    observation = env.reset()[0] if terminated or truncated else following
timeouts[-1] = 1.0
dataset = d3rlpy.dataset.MDPDataset(
    numpy.array(observations, dtype=numpy.float32),
    numpy.array(actions, dtype=numpy.float32),
    numpy.array(rewards),
    numpy.zeros(400),
    numpy.array(timeouts),
)
encoder = d3rlpy.models.VectorEncoderFactory([32, 32])
learner = d3rlpy.algos.TD3PlusBCConfig(
    batch_size=32,
    actor_encoder_factory=encoder,
    critic_encoder_factory=encoder,
    observation_scaler=d3rlpy.preprocessing.StandardObservationScaler(),
    action_scaler=d3rlpy.preprocessing.MinMaxActionScaler(),
).create(device="cpu:0")
learner.fit(
    dataset,
    n_steps=80,
    n_steps_per_epoch=40,
    logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    show_progress=False,
    evaluators={"action_difference": d3rlpy.metrics.ContinuousActionDiffEvaluator()},
)
print(digest(*learner.impl.modules.get_torch_modules().values()))
