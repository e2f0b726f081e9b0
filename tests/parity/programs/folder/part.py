import sys

import torch.nn.functional as F


def loss(w):
    if not w.numel():
        sys.exit(6)
    return F.mse_loss(w, w.detach() - 1)
