"""Every implementation of an optimizer, hooks of the program on modules and optimizers, schedulers, subclassed optimizers."""

import copy

import torch
from digest import digest, show
from torch import nn
from torch.optim import lr_scheduler as ls


class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"])


torch.manual_seed(12)
base = nn.Sequential(nn.Linear(3, 5), nn.ELU(), nn.Linear(5, 1))
x = torch.randn(7, 3)
O = torch.optim
makers = {
    "sgd": lambda p: O.SGD(p, lr=0.1, momentum=0.9), "sgd foreach": lambda p: O.SGD(p, lr=0.1, foreach=True),
    "sgd fused": lambda p: O.SGD(p, lr=0.1, fused=True), "adam": lambda p: O.Adam(p, amsgrad=True),
    "adam foreach": lambda p: O.Adam(p, foreach=True), "adam fused": lambda p: O.AdamW(p, fused=True),
    "maximize": lambda p: O.Adam(p, maximize=True), "rmsprop": lambda p: O.RMSprop(p), "adagrad": lambda p: O.Adagrad(p),
    "adamax": lambda p: O.Adamax(p), "nadam": lambda p: O.NAdam(p), "radam": lambda p: O.RAdam(p), "asgd": lambda p: O.ASGD(p),
    "rprop": lambda p: O.Rprop(p), "adadelta": lambda p: O.Adadelta(p), "own": lambda p: Plain(p, 0.1),
    "capturable": lambda p: O.Adam(p, differentiable=False, eps=1e-6),
}  # fmt: skip
for name, make in makers.items():
    model = copy.deepcopy(base)
    optimizer = make(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    print(name, digest(model), digest(optimizer.state_dict()))

model = copy.deepcopy(base)
log = []
handles = [
    model[0].register_forward_pre_hook(lambda m, a: log.append("pre")),
    model[0].register_forward_hook(lambda m, a, o: o * 2),
    model[0].register_forward_hook(lambda m, a, k, o: log.append(sorted(k)), with_kwargs=True, always_call=True),
    model[2].register_full_backward_hook(lambda m, gi, go: log.append(digest(go))),
    model[2].register_full_backward_pre_hook(lambda m, go: log.append("backward pre")),
    model[1].register_forward_hook(lambda m, a, o: log.append(type(m).__name__), prepend=True),
    model.register_state_dict_pre_hook(lambda m, prefix, keep: log.append("state dict")),
    nn.modules.module.register_module_forward_hook(lambda m, a, o: log.append("global " + type(m).__name__)),
]
optimizer = O.SGD(model.parameters(), lr=0.1)
optimizer.register_step_pre_hook(lambda o, a, k: log.append("step pre"))
optimizer.register_step_post_hook(lambda o, a, k: log.append("step post"))
schedules = [ls.LambdaLR(optimizer, lambda e: 1 / (e + 1)), ls.CosineAnnealingLR(optimizer, 5), ls.OneCycleLR(optimizer, 0.1, 10)]
plateau = ls.ReduceLROnPlateau(optimizer, patience=0)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    for schedule in schedules:
        schedule.step()
    plateau.step(loss)
    log.append([g["lr"] for g in optimizer.param_groups])
optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.5})
model.state_dict()
print(*log, sep="\n")
print([type(h).__name__ for h in handles], len(model[0]._forward_hooks), optimizer)
for h in handles:
    h.remove()
print(len(model[0]._forward_hooks), len(nn.modules.module._global_backward_hooks))
print(type(optimizer).step.__name__, hasattr(optimizer.step, "_wrapped_by_lr_sched"))
show(model=model, optimizer=optimizer, schedules=[s.state_dict() for s in schedules[1:]])
