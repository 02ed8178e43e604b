"""The emulator runs the blocks of one launch interleaved, and finds what would make them wait for ever, or read what
another block has not published. The kernel exchanges values between blocks, with a barrier of all blocks per round.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_selection import usual_or_exhaustive
from emulated import Library

BLOCKS, THREADS, ROUNDS = 3, 64, 4
KERNEL = """
extern "C" __global__ void __launch_bounds__(64, 1) exchange_values(uint* a, uint* b, uint* counter, uint rounds) {
  for (uint round = 0; round < rounds; round++) {
    const uint from = (blockIdx.x + 1) % gridDim.x * 64 + threadIdx.x;
    (round % 2 ? a : b)[blockIdx.x * 64 + threadIdx.x] = (round % 2 ? b : a)[from] + 1;
    __syncthreads();  // before
    if (threadIdx.x == 0) {
      release_add(counter);
      while ((int)(load_acquire(counter) - (round + 1) * gridDim.x) < 0) {}
    }
    __syncthreads();  // after
  }
}
"""
RACES = {
    "__syncthreads();  // before": "",
    "__syncthreads();  // after": "",
    "release_add(counter);": "store_relaxed(counter, *counter + 1);",
    "load_acquire(counter)": "load_relaxed(counter)",
    # One arrival is enough less than there are.
    "* gridDim.x) < 0": "* gridDim.x + 1) < 0",
}


def exchanged(folder: Path, source: str, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    start = np.arange(BLOCKS * THREADS, dtype=np.uint32)
    arrays = [start.copy(), np.zeros_like(start), np.zeros(2, np.uint32)]
    parameters = [*(array.ctypes.data for array in arrays), ROUNDS]
    memory = [(array.ctypes.data, array.nbytes) for array in arrays]
    Library(source, folder).launch_together("exchange_values", BLOCKS, THREADS, parameters, memory, seed)
    assert arrays[2].tolist() == [BLOCKS * ROUNDS, 0]
    return arrays[0]


def test_blocks_that_wait_for_each_other_compute_the_same_in_any_order(emulated_cuda: Path) -> None:
    expected = np.roll(np.arange(BLOCKS * THREADS, dtype=np.uint32), -ROUNDS * THREADS) + ROUNDS
    for seed in range(20):
        np.testing.assert_array_equal(exchanged(emulated_cuda, KERNEL, seed), expected)


# In `make test`, a write and a read without an order.
@pytest.mark.parametrize("right", usual_or_exhaustive(RACES, ("__syncthreads();  // before", "load_acquire(counter)")))
def test_an_order_that_is_missing_is_found_with_every_seed(emulated_cuda: Path, right: str) -> None:
    assert KERNEL.count(right) == 1
    for seed in range(5):
        with pytest.raises(AssertionError, match=r"warp \d (reads|writes) byte .* without an order between them"):
            exchanged(emulated_cuda, KERNEL.replace(right, RACES[right]), seed)


def test_blocks_that_wait_for_ever_are_an_error(emulated_cuda: Path) -> None:
    source = KERNEL.replace("* gridDim.x) < 0", "* gridDim.x - 1) < 0")
    with pytest.raises(AssertionError, match="resident blocks wait for each other"):
        exchanged(emulated_cuda, source, 1)
    # The next launch is not affected.
    test_blocks_that_wait_for_each_other_compute_the_same_in_any_order(emulated_cuda)


def test_time_passes_only_if_no_block_can_go_on(emulated_cuda: Path) -> None:
    """A kernel that bounds its waiting by a clock does not give up while another block reads word after word."""
    wait = "while ((int)(load_acquire(counter) - (round + 1) * gridDim.x) < 0) {}"
    assert KERNEL.count(wait) == 1
    bounded = f"""const long long start = clock64();
      {wait[:-2]}if (clock64() - start > 1000) store_relaxed(counter + 1, 1);
      load_relaxed(counter);"""
    for seed in range(60):
        exchanged(emulated_cuda, KERNEL.replace(wait, bounded), seed)
