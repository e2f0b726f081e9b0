"""Loaded by every Python process that a test starts: a quarter of the time of a small one is the collector's.

It walks all of PyTorch time and again while that is imported, and once more when Python ends.  `tests/parity` compares
processes without this, as a user starts them.
"""

import atexit
import gc

gc.set_threshold(100_000, 20, 100)
atexit.register(gc.freeze)
