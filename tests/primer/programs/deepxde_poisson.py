"""deepxde: a Poisson equation by a PINN with Adam and then L-BFGS, and an inverse problem with a trainable coefficient."""

import os

os.environ["DDE_BACKEND"] = "pytorch"

import deepxde
import numpy
import torch
from _digest import digest

deepxde.config.set_random_seed(9)
torch.set_num_threads(1)


def poisson(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return deepxde.grad.hessian(u, x) + torch.pi**2 * torch.sin(torch.pi * x)


def solution(x: numpy.ndarray) -> numpy.ndarray:
    return numpy.sin(numpy.pi * x)


domain = deepxde.geometry.Interval(-1, 1)
edge = deepxde.icbc.DirichletBC(domain, solution, lambda x, on_boundary: on_boundary)
data = deepxde.data.PDE(domain, poisson, edge, 16, 2, solution=solution, num_test=40)
model = deepxde.Model(data, deepxde.nn.FNN([1, 20, 20, 1], "tanh", "Glorot uniform"))
model.compile("adam", lr=1e-2, metrics=["l2 relative error"], loss_weights=[1, 10])
model.train(iterations=60, display_every=30, verbose=0)
deepxde.optimizers.set_LBFGS_options(maxiter=40)
model.compile("L-BFGS")
model.train(verbose=0)

rate = deepxde.Variable(0.5)


def decay(t: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    return deepxde.grad.jacobian(u, t) + rate * u


time = deepxde.geometry.TimeDomain(0, 1)
start = deepxde.icbc.IC(time, lambda t: numpy.ones((len(t), 1)), lambda _, on_initial: on_initial)
seen = numpy.linspace(0, 1, 12)[:, None]
measured = deepxde.icbc.PointSetBC(seen, numpy.exp(-2 * seen))
inverse = deepxde.Model(
    deepxde.data.PDE(time, decay, [start, measured], 20, 2, anchors=seen),
    deepxde.nn.FNN([1, 16, 16, 1], "tanh", "Glorot normal"),
)
inverse.compile("adam", lr=5e-3, external_trainable_variables=rate, decay=("step", 40, 0.5))
inverse.train(iterations=60, callbacks=[deepxde.callbacks.PDEPointResampler(period=20)], display_every=30, verbose=0)
print(f"{rate.item():.6f}", digest(model.net, inverse.net))
