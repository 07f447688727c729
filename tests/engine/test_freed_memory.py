from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flbench.engine.freed_memory import keep_freed_memory

TENSOR = 1_500_000  #: elements; as large as the largest activation of the CIFAR-10 CNN


def faults_of_large_tensors() -> int:
    """Page faults of this thread while it fills and frees 20 tensors, after the first five."""
    for number in range(25):
        if number == 5:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        torch.empty(TENSOR).fill_(1)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_threads_use_freed_memory_again() -> None:
    if not keep_freed_memory():
        pytest.skip("glibc does not allocate memory here")
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as pool:
        faults = pool.submit(faults_of_large_tensors).result()
    assert faults < 20 * TENSOR * 4 / resource.getpagesize() / 2, "pages come from the kernel again"
