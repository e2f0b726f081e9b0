"""Mixed precision with a scaler that skips steps, accumulation, an EMA, clipping, non-finite losses."""

import copy

import torch
from digest import show
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(8)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
shadow = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
for step in range(8):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 4)).float().pow(2).mean() / 2
        if step == 4:
            loss = loss * float("inf")
    scaler.scale(loss).backward()
    if step % 2:
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=step % 4 == 1)
        ema.update_parameters(model)
        with torch.no_grad():
            for a, b in zip(shadow.parameters(), model.parameters()):
                a.lerp_(b, 0.1)
        print(step, loss.item(), norm.item(), scaler.get_scale())
show(model=model, optimizer=optimizer, ema=ema, shadow=shadow, scaler=scaler.state_dict())
