"""Raised malloc thresholds, in a process of their own: they cannot be lowered again."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from littlelm.train.malloc import raise_malloc_thresholds
said = raise_malloc_thresholds()
assert "torch" not in sys.modules
block = b"x" * (64 * 2**20)
del block
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = b"x" * (64 * 2**20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, said)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the thresholds are glibc's")
def test_memory_of_a_freed_tensor_is_used_again_without_page_faults():
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    faults, _, said = ran.stdout.partition(" ")
    assert int(faults) < 64 * 2**20 / 4096 / 20
    assert "2 GiB" in said


def test_another_libc_is_left_alone_and_that_is_said(monkeypatch):
    from littlelm.train.malloc import raise_malloc_thresholds

    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert "left alone" in raise_malloc_thresholds()
