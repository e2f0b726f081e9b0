"""The allocator of the process that a recipe runs in."""

from __future__ import annotations

import ctypes
import platform

# Of glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT = 1 << 30
LARGEST_OF_THE_HEAP = 32 << 20  # glibc takes no more; larger blocks, such as a replay, are mapped one by one as before


def keep_freed() -> bool:
    """Let the process keep memory that it has freed, up to a gigabyte, since an update asks for as much again.

    By default glibc gives megabytes at the end of its heap back to the system after each update and the next one pays
    for thousands of page faults; whether it does depends on the order of a few allocations. Returns whether the
    allocator took it: only glibc's is asked.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(TRIM_THRESHOLD, KEPT)) and bool(mallopt(MMAP_THRESHOLD, LARGEST_OF_THE_HEAP))
