"""A deep convolutional net trained under 30 % of the memory that its backward takes, with the same gradients.

As a script it trains the net twice, under the budget and plainly, and prints peak and time of both:

    python examples/sweep_chain.py

As a factory it is what the command line plans and proves:

    gradledger sweep plan   examples/sweep_chain.py:make --budget 30%
    gradledger sweep verify examples/sweep_chain.py:make --budget 30%
"""

import functools
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from gradledger import sweep

CLASSES, BATCH, CHANNELS, SIZE, STEPS = 10, 16, 16, 24, 12


def block(channels_in, channels_out, stride=1):
    """One link of the chain: what it saves for the backward is several times the size of what it hands on."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.GELU(),
        nn.Dropout2d(0.05),
    )


def network():
    """Twelve blocks; a model that can be swept is a chain: each block takes what the one before returned."""
    return nn.Sequential(
        block(3, CHANNELS),
        *[block(CHANNELS, CHANNELS) for _ in range(5)],
        block(CHANNELS, 2 * CHANNELS, stride=2),
        *[block(2 * CHANNELS, 2 * CHANNELS) for _ in range(4)],
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * CHANNELS, CLASSES)),
    )


def batch(generator):
    """Images [B, 3, H, W] of a striped pattern, its direction the class [B], under noise."""
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    angle = labels * (torch.pi / CLASSES)
    grid = torch.arange(SIZE, dtype=torch.float32)
    across = grid[None, None, :] * angle.cos()[:, None, None] + grid[None, :, None] * angle.sin()[:, None, None]
    stripes = (0.9 * across).sin()[:, None].expand(-1, 3, -1, -1)
    return stripes + 0.3 * torch.randn(BATCH, 3, SIZE, SIZE, generator=generator), labels


def make():
    """What `gradledger sweep plan` and `verify` ask for: the chain, one batch, and the loss of (output, target)."""
    torch.manual_seed(0)
    images, labels = batch(torch.Generator().manual_seed(1))
    return network(), images, labels, F.cross_entropy


def timed(backward, images, labels):
    """Loss and seconds of one forward and backward."""
    since = time.perf_counter()
    loss = backward(images, labels)
    return loss.item(), time.perf_counter() - since


def train(model, backward):
    """STEPS optimizer steps; `backward(images, labels)` fills `.grad` and returns the loss.

    Returns the losses, the highest peak of a step in bytes above what is there before it, and the median of seconds.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(2)
    torch.manual_seed(3)  # dropout draws from here: both ways get the same masks
    losses, seconds, peaks = [], [], []
    for _ in range(STEPS):
        images, labels = batch(generator)
        optimizer.zero_grad()
        measured = sweep.peak_of(functools.partial(timed, backward, images, labels))
        optimizer.step()
        losses.append(measured.result[0])
        seconds.append(measured.result[1])
        peaks.append(measured.bytes)
    return losses, max(peaks), statistics.median(seconds)


def main():
    # The plan: measured on one batch, then solved for the cheapest recompute that stays under the budget.
    model, images, labels, loss_fn = make()
    plan = sweep.plan(model, example=(images, labels), loss=loss_fn, budget="30%")
    print(plan)
    print(f"budget {plan.budget} bytes, predicted peak {plan.peak} bytes\n")

    # Under the budget: `backward` is forward, loss and reverse walk in one, and needs no graph over the whole net.
    swept = sweep.Sweep(model, loss_fn, plan=plan)
    losses, peak, seconds = train(model, swept.backward)

    # The plain way, from the same start.
    plain, *_ = make()

    def backward(images, labels):
        loss = loss_fn(plain(images), labels)
        loss.backward()
        return loss.detach()

    plain_losses, plain_peak, plain_seconds = train(plain, backward)

    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} under the budget")
    print(f"loss {plain_losses[0]:.4f} -> {plain_losses[-1]:.4f} plain")
    print(f"peak {peak / 1e6:.2f} MB under the budget, {plain_peak / 1e6:.2f} MB plain: {peak / plain_peak:.2f}x")
    print(f"step {seconds * 1e3:.0f} ms under the budget, {plain_seconds * 1e3:.0f} ms plain")
    assert peak <= plan.budget, "the budget is kept"
    # Not close: equal.  Weights, batch statistics and losses have the same bits after all steps.
    assert losses == plain_losses
    state, plain_state = model.state_dict(), plain.state_dict()
    assert all(torch.equal(state[name], plain_state[name]) for name in plain_state)
    print("weights and batch statistics of both: equal bit for bit")


if __name__ == "__main__":
    main()
