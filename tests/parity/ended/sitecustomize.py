"""The end of a process without the last walk over all of PyTorch, a fifth of the time of a small program.

Only for programs that have nothing left to say when Python ends: see `AT_THE_END` of the tests.
"""

import atexit
import gc

atexit.register(gc.freeze)
