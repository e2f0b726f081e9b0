"""An accelerate training loop with gradient accumulation, a scheduler and clipping."""

import torch
import torch.nn.functional as F
from _digest import digest
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(13)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
x = torch.randn(512, 10)
y = x[:, :2] * x[:, 2:4]
model = nn.Sequential(nn.Linear(10, 48), nn.GELU(), nn.Linear(48, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=12)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for _ in range(3):
    model.train()
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = F.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
print(f"{loss.item():.6f}", digest(accelerator.unwrap_model(model)))
