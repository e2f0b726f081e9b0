"""What the program does before it imports torch counts; what is loaded and set at its first line is what python sets."""

import os
import sys

print("torch" in sys.modules, "numpy" in sys.modules, sys.gettrace(), sys.getprofile())
print(sys.flags, sys.excepthook is sys.__excepthook__, sys.orig_argv[1:], sys.argv)
print([entry for entry in sys.path if entry], sorted(globals()), list(globals())[:9])
os.environ["OMP_NUM_THREADS"] = "3"
os.environ["MKL_NUM_THREADS"] = "3"
import gc
import logging
import signal
import threading
import warnings

print(logging.root.handlers, logging.root.level, gc.get_threshold(), gc.isenabled(), threading.active_count())
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGTERM), warnings.filters)
import torch

print(torch.get_num_threads(), torch.__loader__ is torch.__spec__.loader, len(sys.meta_path))
print(vars(torch.__loader__).keys(), torch.__spec__.origin.rpartition("/")[2])
print(sorted(m for m in ("torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "pandas") if m in sys.modules))
print(warnings.filters, torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_anomaly_enabled())
x = torch.randn(200, 200, generator=torch.Generator().manual_seed(0))
print((x @ x).sum().item(), torch.backends.mkldnn.enabled, torch.backends.mha.get_fastpath_enabled())
