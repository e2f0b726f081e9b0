"""pytorch-ignite: supervised trainer and evaluator engines with accumulation, a schedule handler and an EMA handler."""

import random

import numpy
import torch
from _digest import digest
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import EMAHandler, LRScheduler
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
numpy.random.seed(1)
torch.manual_seed(1)
torch.set_num_threads(1)
x = torch.randn(240, 8)
y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion, gradient_accumulation_steps=2)
evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy(), "loss": Loss(criterion)})
trainer.add_event_handler(Events.EPOCH_COMPLETED, LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 2)))
ema = EMAHandler(model, momentum=0.01)
ema.attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED(every=2))
held_out = DataLoader(TensorDataset(x[192:], y[192:]), batch_size=48)
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(held_out))
trainer.run(DataLoader(TensorDataset(x[:192], y[:192]), batch_size=16, shuffle=True), max_epochs=4)
print(f"{evaluator.state.metrics['accuracy']:.3f}", digest(model, ema.ema_model))
