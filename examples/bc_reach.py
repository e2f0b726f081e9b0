"""Behaviour cloning of a reaching controller: action chunks, normalised inputs, an averaged copy for evaluation."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

OBS, ACT, CHUNK, HORIZON = 6, 2, 4, 60
EPISODES, VAL_EPISODES, EPOCHS, BATCH = 80, 16, 8, 64


def controller(obs):
    """The teacher: a damped pull towards the goal, obs [..., 6] -> action [..., 2] in m/s²."""
    position, velocity, goal = obs.split(2, dim=-1)
    return (3.0 * (goal - position) - 2.0 * velocity).clamp(-2.0, 2.0)


def dynamics(obs, action, dt=0.1):
    position, velocity, goal = obs.split(2, dim=-1)
    velocity = velocity + dt * action
    return torch.cat([position + dt * velocity, velocity, goal], dim=-1)


def start(n, generator):
    position, goal = torch.randn(2, n, 2, generator=generator)
    return torch.cat([position, torch.zeros(n, 2), goal], dim=-1)


def demonstrations(n, generator):
    """n episodes of windows: observations [n, W, 6] and the next CHUNK actions [n, W, CHUNK, 2]."""
    obs, observations, actions = start(n, generator), [], []
    for _ in range(HORIZON):
        action = controller(obs)
        observations.append(obs)
        actions.append(action)
        obs = dynamics(obs, action + 0.05 * torch.randn(n, ACT, generator=generator))
    windows = torch.stack(actions, dim=1).unfold(1, CHUNK, 1).transpose(2, 3)
    return torch.stack(observations, dim=1)[:, : windows.shape[1]], windows


class Policy(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.register_buffer("obs_mean", torch.zeros(OBS))
        self.register_buffer("obs_std", torch.ones(OBS))
        self.body = nn.Sequential(
            nn.Linear(OBS, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(0.05),
            nn.Linear(hidden, hidden),
            nn.GELU(),
        )
        self.head = nn.Linear(hidden, CHUNK * ACT)

    def fit_normaliser(self, obs):
        self.obs_mean.copy_(obs.mean(dim=0))
        self.obs_std.copy_(obs.std(dim=0).clamp_min(1e-3))

    def forward(self, obs):
        hidden = self.body((obs - self.obs_mean) / self.obs_std)
        return self.head(hidden).unflatten(-1, (CHUNK, ACT))


class Averaged:
    """Exponential moving average of a policy's weights, buffers copied as they are."""

    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1.0 - self.decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


def param_groups(model):
    decay = [p for p in model.parameters() if p.ndim >= 2]
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": decay, "weight_decay": 1e-2}, {"params": no_decay, "weight_decay": 0.0}]


@torch.no_grad()
def distance_to_goal(policy, n=64):
    """Mean final distance in metres when the policy drives, replanning every CHUNK steps."""
    obs = start(n, torch.Generator().manual_seed(99))
    for _ in range(HORIZON // CHUNK):
        for action in policy(obs).unbind(dim=1):
            obs = dynamics(obs, action)
    return (obs[:, :2] - obs[:, 4:]).norm(dim=-1).mean().item()


@torch.no_grad()
def validation_loss(policy, loader):
    total = sum(F.l1_loss(policy(obs), action, reduction="sum").item() for obs, action in loader)
    return total / (len(loader.dataset) * CHUNK * ACT)


def main():
    torch.manual_seed(7)
    generator = torch.Generator().manual_seed(7)
    obs, action = demonstrations(EPISODES, generator)
    # Whole episodes go to one side: neighbouring frames of one episode are near duplicates.
    train = TensorDataset(obs[:-VAL_EPISODES].flatten(0, 1), action[:-VAL_EPISODES].flatten(0, 1))
    val = TensorDataset(obs[-VAL_EPISODES:].flatten(0, 1), action[-VAL_EPISODES:].flatten(0, 1))
    train_loader = DataLoader(train, batch_size=BATCH, shuffle=True)
    val_loader = DataLoader(val, batch_size=256)

    policy = Policy()
    policy.fit_normaliser(train.tensors[0])
    averaged = Averaged(policy)
    optimizer = torch.optim.AdamW(param_groups(policy), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(train_loader))
    for epoch in range(EPOCHS):
        policy.train()
        total = 0.0
        for batch_obs, batch_action in train_loader:
            loss = F.l1_loss(policy(batch_obs), batch_action)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            averaged.update(policy)
            total += loss.item()
        print(
            f"epoch {epoch}  train {total / len(train_loader):.4f}  "
            f"val {validation_loss(averaged.model, val_loader):.4f}  goal {distance_to_goal(averaged.model):.3f} m"
        )


if __name__ == "__main__":
    main()
