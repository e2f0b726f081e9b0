"""The plainest loop: argv, a file next to the script, a file in the working folder, __name__, weights."""

import argparse
import os
import sys

import torch
import torch.nn.functional as F
from digest import show
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("rest", nargs="*")


def main():
    args = parser.parse_args()
    print(sys.argv, args, __name__, os.path.basename(__file__), __spec__, __package__, __doc__)
    print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), os.path.basename(os.getcwd()))
    with open("note.txt") as note:
        print(note.read())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for step in range(args.steps):
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        print(step, loss.item(), norm.item(), scheduler.get_last_lr())
    model.eval()
    with torch.no_grad():
        print(F.mse_loss(model(torch.ones(2, 6)), torch.zeros(2, 3)).item())
    show(model=model, optimizer=optimizer, scheduler=scheduler)


if __name__ == "__main__":
    main()
