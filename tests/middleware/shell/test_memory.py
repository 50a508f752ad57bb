"""Reuse of freed memory in a host process."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROUNDS, ROUND, PARTITION_BYTES = 50, 16, 131_072
PAGES = ROUNDS * ROUND * PARTITION_BYTES // resource.getpagesize()

pytestmark = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")


def take_and_free(rounds: int) -> int:
    """Return how many pages the system provided for outputs that are made and freed in groups."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        outputs = [np.ones(PARTITION_BYTES, np.uint8) for _ in range(ROUND)]
        del outputs
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_the_memory_of_freed_outputs_is_used_again():
    code = """
import sys
from tests.middleware.shell.test_memory import ROUNDS, take_and_free
from thalweg.middleware.shell.memory import keep_freed
keep_freed()
take_and_free(2)
print(take_and_free(ROUNDS))
"""
    taken = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert int(taken.stdout) < PAGES / 20
