"""Tracebacks that the program prints itself: format_exc, logging, causes, contexts, groups, limits, threads."""

import logging
import sys
import threading
import traceback

import torch
import torch.nn.functional as F
from torch import nn

logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return F.mse_loss(self.layer(x), torch.zeros(7, 3, 5))


net = Net()


def fail():
    net(torch.ones(4, 2))


def relay():
    try:
        fail()
    except RuntimeError as error:
        raise ValueError("cannot train") from error


def during():
    try:
        fail()
    except RuntimeError:
        F.cross_entropy(torch.zeros(2, 3), torch.tensor([5, 5]))


for function in (fail, relay, during):
    try:
        function()
    except Exception as error:
        print(traceback.format_exc())
        logging.exception("in %s", function.__name__)
        print("".join(traceback.format_exception(error, limit=2)))
        print("".join(traceback.format_exception(error, limit=-2)))
        print([(f.name, f.lineno, f.line) for f in traceback.extract_tb(error.__traceback__)])
        print([line for _, line in traceback.walk_tb(error.__traceback__)])
        print(traceback.TracebackException.from_exception(error, capture_locals=False).stack.format()[-1])

try:
    problems = []
    for function in (fail, during):
        try:
            function()
        except Exception as error:
            problems.append(error)
    raise ExceptionGroup("several", problems)
except ExceptionGroup:
    traceback.print_exc()


def in_hook(module, args, output):
    traceback.print_stack(file=sys.stdout)
    logging.warning("here", stack_info=True)


net.layer.register_forward_hook(in_hook)
try:
    fail()
except RuntimeError:
    traceback.print_exc(file=sys.stdout)

t = threading.Thread(target=during, name="worker")
t.start()
t.join()
relay()
