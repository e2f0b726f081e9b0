"""What runs last: sys.excepthook of the program, sys.last_value in an exit handler, order of the two streams."""

import atexit
import sys
import traceback

import torch
import torch.nn.functional as F


def at_exit():
    print("at exit", hasattr(sys, "last_value"), "__file__" in globals(), flush=True)
    if hasattr(sys, "last_value"):
        print("last", type(sys.last_value).__name__, [f.name for f in traceback.extract_tb(sys.last_traceback)], flush=True)


def hook(kind, error, tb):
    names = []
    while tb is not None:
        names.append((tb.tb_frame.f_code.co_name, tb.tb_lineno))
        tb = tb.tb_next
    print("my hook", kind.__name__, names, len(traceback.extract_stack()))
    if "broken" in sys.argv:
        raise RuntimeError("the hook fails too")
    if "leaves" in sys.argv:
        sys.exit(9)


atexit.register(at_exit)
print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
if "default" not in sys.argv:
    sys.excepthook = hook


model = torch.nn.Linear(2, 2)
F.nll_loss(model(torch.ones(1, 2)), torch.tensor([4]))
