"""PPO on CartPole-v1: eight environments, GAE, clipped objective, shared trunk for actor and critic."""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical


@dataclass
class Args:
    seed: int = 3
    num_envs: int = 8
    num_steps: int = 128
    iterations: int = 6
    epochs: int = 6
    minibatches: int = 4
    lr: float = 2.5e-3
    gamma: float = 0.98
    reward_scale: float = 0.1
    gae_lambda: float = 0.95
    clip: float = 0.3
    value_coef: float = 0.5
    entropy_coef: float = 0.01
    max_grad_norm: float = 0.5


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, n_actions):
        super().__init__()
        self.trunk = nn.Sequential(
            layer_init(nn.Linear(obs_dim, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh()
        )
        self.policy_head = layer_init(nn.Linear(64, n_actions), std=0.01)
        self.value_head = layer_init(nn.Linear(64, 1), std=1.0)

    def forward(self, obs):
        features = self.trunk(obs)
        return Categorical(logits=self.policy_head(features)), self.value_head(features).squeeze(-1)


def make_envs(args):
    # Same-step autoreset: the observation that ended an episode is in info["final_obs"].
    return SyncVectorEnv(
        [lambda: gym.make("CartPole-v1") for _ in range(args.num_envs)], autoreset_mode=AutoresetMode.SAME_STEP
    )


@torch.no_grad()
def collect(model, envs, obs, args, tracker):
    rows = {key: [] for key in ("obs", "action", "logp", "value", "next_value", "reward", "terminated", "done")}
    for _ in range(args.num_steps):
        dist, value = model(obs)
        action = dist.sample()
        step_obs, reward, terminated, truncated, info = envs.step(action.numpy())
        done = terminated | truncated
        true_next = step_obs.copy()
        for i in np.flatnonzero(done):
            true_next[i] = info["final_obs"][i]
        _, next_value = model(torch.from_numpy(true_next))
        tracker.update(reward, done)
        row = (obs, action, dist.log_prob(action), value, next_value, args.reward_scale * reward, terminated, done)
        for key, item in zip(rows, row, strict=True):
            rows[key].append(torch.as_tensor(item))
        obs = torch.from_numpy(step_obs.copy())
    return obs, {key: torch.stack(items) for key, items in rows.items()}


def gae(batch, args):
    """Advantages and returns, both [T, E]; only termination cuts the bootstrap, both ends cut the trace."""
    advantages = torch.zeros(args.num_steps, args.num_envs)
    trace = torch.zeros(args.num_envs)
    alive, running = 1.0 - batch["terminated"].float(), 1.0 - batch["done"].float()
    for t in reversed(range(args.num_steps)):
        delta = batch["reward"][t] + args.gamma * alive[t] * batch["next_value"][t] - batch["value"][t]
        trace = delta.float() + args.gamma * args.gae_lambda * running[t] * trace
        advantages[t] = trace
    return advantages, advantages + batch["value"]


def update(model, optimizer, batch, args):
    advantages, returns = (x.flatten() for x in gae(batch, args))
    obs, action, logp_old = (batch[key].flatten(0, 1) for key in ("obs", "action", "logp"))
    size = len(obs) // args.minibatches
    for _ in range(args.epochs):
        for idx in torch.randperm(len(obs)).split(size):
            dist, value = model(obs[idx])
            ratio = (dist.log_prob(action[idx]) - logp_old[idx]).exp()
            adv = (advantages[idx] - advantages[idx].mean()) / (advantages[idx].std() + 1e-8)
            policy_loss = -torch.min(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv).mean()
            value_loss = 0.5 * (value - returns[idx]).pow(2).mean()
            entropy = dist.entropy().mean()
            loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
    return policy_loss.item(), value_loss.item(), entropy.item()


class ReturnTracker:
    def __init__(self, num_envs):
        self.running, self.finished = np.zeros(num_envs), []

    def update(self, reward, done):
        self.running += reward
        self.finished.extend(self.running[done])
        self.running[done] = 0.0


def main():
    args = Args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    envs = make_envs(args)
    model = ActorCritic(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, eps=1e-5)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=args.iterations)
    tracker = ReturnTracker(args.num_envs)
    obs = torch.from_numpy(envs.reset(seed=args.seed)[0])
    for iteration in range(1, args.iterations + 1):
        obs, batch = collect(model, envs, obs, args, tracker)
        policy_loss, value_loss, entropy = update(model, optimizer, batch, args)
        scheduler.step()
        print(
            f"iteration {iteration}  return {np.mean(tracker.finished[-20:]):6.1f}  policy {policy_loss:+.4f}  "
            f"value {value_loss:7.3f}  entropy {entropy:.3f}  lr {scheduler.get_last_lr()[0]:.1e}"
        )
    envs.close()


if __name__ == "__main__":
    main()
