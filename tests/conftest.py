"""What every test process starts from, however the tests were started.

A shell that starts a job in the background may hand it an ignored or a blocked SIGINT, and children inherit both: the
programs under test that end by Ctrl-C would then never end.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

from hypothesis import settings

# The same examples each time, so that a run says something of the change under test; HYPOTHESIS_PROFILE=search looks
# for new ones.
settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

started = str(Path(__file__).parent / "started")  # what every Python process that a test starts loads first
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (started, os.environ.get("PYTHONPATH"))))

if signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
    signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGALRM})


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector need not walk it in each of the many tests, and
    measurements of memory, that ask for it.
    """
    gc.collect()
    gc.freeze()
