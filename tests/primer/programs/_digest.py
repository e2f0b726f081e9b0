"""One line that says every bit of a model's weights and of the random state."""

import hashlib
import random

import numpy
import torch


def digest(*modules: torch.nn.Module) -> str:
    """sha256 over all state tensors and the three random states."""
    seen = hashlib.sha256()
    for module in modules:
        for name, value in module.state_dict().items():
            if isinstance(value, torch.Tensor):
                seen.update(name.encode())
                seen.update(value.detach().cpu().contiguous().view(-1).numpy().tobytes())
    seen.update(torch.get_rng_state().numpy().tobytes())
    seen.update(repr(random.getstate()).encode())
    seen.update(repr(numpy.random.get_state()).encode())
    return seen.hexdigest()
