"""torch.func: vmap, grad, jacobians, ensembles, functional_call, forward mode."""

import copy

import torch
import torch.nn.functional as F
from digest import show
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

torch.manual_seed(2)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
params = {k: v.detach() for k, v in model.named_parameters()}
x, y = torch.randn(5, 3), torch.randn(5, 1)


def loss(params, x, y):
    return F.mse_loss(functional_call(model, params, (x,)), y)


per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
g, value = grad_and_value(loss)(params, x, y)
print(value.item(), {k: tuple(v.shape) for k, v in per_sample.items()})
f = lambda x: model(x).sum() ** 2
print(jacrev(f)(x[0]), jacfwd(f)(x[0]), hessian(f)(x[0]).shape, jvp(f, (x[0],), (x[1],)))
out, pull = vjp(model, x)
pulled = pull(torch.ones_like(out))
models = [copy.deepcopy(model) for _ in range(3)]
for i, m in enumerate(models):
    nn.init.constant_(m[0].bias, float(i))
stacked, buffers = stack_module_state(models)
base = copy.deepcopy(model).to("meta")
ensemble = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(stacked, buffers, x)
dropped = vmap(lambda x: F.dropout(x, 0.5), randomness="different")(torch.ones(4, 3))
for _ in range(3):
    params = {k: v - 0.1 * g for (k, v), g in zip(params.items(), grad(loss)(params, x, y).values())}
with torch.autograd.forward_ad.dual_level():
    dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
    tangent = torch.autograd.forward_ad.unpack_dual(model(dual)).tangent
print(torch.autograd.functional.jacobian(model, x[:1]).shape, torch.autograd.functional.hvp(f, x[0], x[1])[1])
try:
    vmap(lambda x: x.item())(torch.ones(3))
except RuntimeError as error:
    print(str(error)[:60])
show(params=params, per_sample=per_sample, ensemble=ensemble, dropped=dropped, tangent=tangent, pulled=pulled, model=model)
