"""diffusers: a small UNet2DModel trained to predict noise, with accelerate, an EMA of the weights and samples between."""

import random

import numpy
import torch
from _digest import digest
from accelerate import Accelerator
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader

random.seed(10)
numpy.random.seed(10)
torch.manual_seed(10)
torch.set_num_threads(1)
images = torch.tanh(torch.randn(48, 1, 8, 8).cumsum(-1))
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(8, 16),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    norm_num_groups=4,
    attention_head_dim=4,
)
noise_scheduler = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(images, batch_size=12, shuffle=True)
epochs = 3
lr_scheduler = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=3, num_training_steps=len(loader) * epochs)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, loader, lr_scheduler)
ema = EMAModel(model.parameters(), decay=0.99, use_ema_warmup=True, model_cls=UNet2DModel, model_config=model.config)
for _ in range(epochs):
    model.train()
    for clean in loader:
        noise = torch.randn_like(clean)
        timesteps = torch.randint(0, noise_scheduler.config.num_train_timesteps, (len(clean),), dtype=torch.int64)
        noisy = noise_scheduler.add_noise(clean, noise, timesteps)
        with accelerator.accumulate(model):
            predicted = model(noisy, timesteps, return_dict=False)[0]
            loss = torch.nn.functional.mse_loss(predicted, noise)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema.step(model.parameters())
    unwrapped = accelerator.unwrap_model(model)
    ema.store(unwrapped.parameters())
    ema.copy_to(unwrapped.parameters())
    pipeline = DDPMPipeline(unet=unwrapped, scheduler=noise_scheduler)
    pipeline.set_progress_bar_config(disable=True)
    pipeline(batch_size=2, num_inference_steps=5, generator=torch.Generator().manual_seed(0), output_type="np")
    ema.restore(unwrapped.parameters())
print(f"{loss.item():.6f}", digest(model))
