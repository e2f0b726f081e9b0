"""Stable-Baselines3's DQN as a process that learns so many steps when it is told to: a contestant of `dqn_vs_sb3.py`.

It runs in an environment of its own and knows nothing of this project. Same protocol as `_dqn_worker.py`.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import ale_py
import gymnasium
import stable_baselines3
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack


def main() -> None:
    asked = json.loads(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(asked["threads"])
    gymnasium.register_envs(ale_py)
    # a game over ends an episode, as in the product's default; frames, skip, maximum and clipping are the same
    env_id = "".join(word.capitalize() for word in asked["game"].split("_")) + "NoFrameskip-v4"
    env = make_atari_env(env_id, n_envs=asked["lanes"], seed=1, wrapper_kwargs={"terminal_on_life_loss": False})
    gradient_steps, rest = divmod(asked["lanes"], asked["update_every"])
    if rest:
        raise SystemExit("lanes must be a multiple of update_every: SB3 updates once all lanes have stepped")
    small = asked["optimize_memory"]
    model = DQN(
        "CnnPolicy",
        VecFrameStack(env, 4),
        learning_rate=1e-4,
        buffer_size=asked["replay"],
        learning_starts=asked["learning_starts"],
        batch_size=asked["batch"],
        gamma=0.99,
        train_freq=1,
        gradient_steps=gradient_steps,
        target_update_interval=asked["target_sync"],
        exploration_initial_eps=0.1,
        exploration_final_eps=0.1,
        max_grad_norm=10,
        optimize_memory_usage=small,
        replay_buffer_kwargs={"handle_timeout_termination": not small},
        seed=1,
        device="cpu",
    )

    def learn(steps: int) -> None:
        before, updates = model.num_timesteps, model._n_updates
        wall, cpu = time.perf_counter(), time.process_time()
        model.learn(steps, reset_num_timesteps=False, log_interval=None)
        answer = {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - cpu,
            "steps": model.num_timesteps - before,
            "updates": model._n_updates - updates,
            "parts": {},
            "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(answer), file=answers, flush=True)

    other = ReplayBuffer(
        asked["replay"],
        model.observation_space,
        model.action_space,
        n_envs=asked["lanes"],
        optimize_memory_usage=not small,
        handle_timeout_termination=small,
    )
    built = {
        "replay_bytes": held(model.replay_buffer),
        "replay_bytes_other": held(other),
        "parameters": sum(parameter.numel() for parameter in model.q_net.parameters()),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "stable_baselines3": stable_baselines3.__version__,
    }
    del other
    print(json.dumps(built), file=answers, flush=True)
    for line in sys.stdin:
        learn(int(line))
    env.close()


def held(buffer: ReplayBuffer) -> int:
    """Bytes of all arrays of a replay buffer."""
    return sum(value.nbytes for value in vars(buffer).values() if hasattr(value, "nbytes"))


if __name__ == "__main__":
    main()
