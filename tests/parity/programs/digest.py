"""Prints the exact bits of weights, states and random generators, so that two runs can be compared as text.

Importing it gives every global generator a fixed start.
"""

import hashlib
import random

import numpy
import torch

random.seed(0)
numpy.random.seed(0)
torch.manual_seed(0)


def _feed(h, thing):
    if isinstance(thing, torch.Tensor):
        flat = (thing.detach().to_dense() if thing.is_sparse else thing.detach()).cpu().contiguous()
        h.update(f"{flat.dtype}{tuple(flat.shape)}{thing.requires_grad}".encode())
        h.update(flat.flatten().view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    elif isinstance(thing, torch.nn.Module):
        _feed(h, thing.state_dict())
        _feed(h, [p.grad for p in thing.parameters()])
        h.update(str(thing.training).encode())
    elif hasattr(thing, "state_dict"):
        _feed(h, thing.state_dict())
    elif isinstance(thing, dict):
        for key in thing:
            h.update(repr(key).encode())
            _feed(h, thing[key])
    elif isinstance(thing, (list, tuple)):
        h.update(f"{type(thing).__name__}{len(thing)}".encode())
        for item in thing:
            _feed(h, item)
    else:
        h.update(repr(thing).encode())


def digest(thing):
    h = hashlib.sha256()
    _feed(h, thing)
    return h.hexdigest()[:24]


def show(**things):
    """One line a thing, then the state of every global random generator in use."""
    for name, thing in things.items():
        print(f"{name}: {digest(thing)}")
    print("python random:", digest(random.getstate()))
    print("numpy random:", digest([str(x) for x in numpy.random.get_state()]))
    print("torch random:", digest(torch.get_rng_state()))
