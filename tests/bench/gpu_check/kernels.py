"""Runs every prepared kernel case on the real driver. Each array has its own device memory, followed by guard bytes."""

from __future__ import annotations

import gzip
import pickle
import sys
from pathlib import Path
from typing import Any

# Makes numpy know "bfloat16".
import ml_dtypes  # noqa: F401
import numpy as np
from case_check import check_outputs

from nearfar.targets.cuda.driver import Arguments, Driver, NvidiaDriver

from .prepared import CASES_FILE, CUBIN_FILE

# The number of guard bytes after every array, and their value.
BEHIND = 256
UNTOUCHED = 0xA5


def main(folder: Path) -> int:
    """Returns the exit code: 1 if a case failed."""
    driver = NvidiaDriver()
    print(driver.name, driver.arch, flush=True)
    module = driver.load(folder / CUBIN_FILE)
    cases = pickle.loads(gzip.decompress((folder / CASES_FILE).read_bytes()))
    failed = 0
    for case in cases:
        try:
            for run in case["runs"]:
                outputs = run_case(driver, module, run)
                check_outputs((case["name"], run["dims"]), case["dtype"], run["expected"], outputs)
        except AssertionError as error:
            failed += 1
            print(f"FAIL {case['name']}: {str(error)[:500]}", flush=True)
    driver.close()
    print(
        f"{len(cases) - failed} of {len(cases)} kernel cases pass, {sum(len(case['runs']) for case in cases)} runs",
        flush=True,
    )
    return int(failed > 0)


def run_case(driver: Driver, module: Any, run: dict[str, Any]) -> dict[str, bytes]:
    """Run the kernels and return every array. Raises AssertionError if a kernel writes past an array."""
    watched = np.full(BEHIND, UNTOUCHED, np.uint8)
    addresses = {}
    for role, array in run["arrays"].items():
        addresses[role] = driver.allocate(array.nbytes + BEHIND)
        driver.upload(addresses[role], np.ascontiguousarray(array))
        driver.upload(addresses[role] + array.nbytes, watched)
    for entry, grid, threads, buffers, scalars in run["launches"]:
        if all(grid):
            parameters = Arguments(np.array([*(addresses[role] for role in buffers), *scalars], np.uint64))
            driver.launch(driver.function(module, entry), grid, threads, parameters)
    outputs = {}
    for role, array in run["arrays"].items():
        outputs[role] = np.empty(array.nbytes + BEHIND, np.uint8)
        driver.download(outputs[role], addresses[role])
    driver.wait(driver.record())
    for role, address in addresses.items():
        driver.free(address)
        assert (outputs[role][-BEHIND:] == UNTOUCHED).all(), f"{role} was written beyond its end"
    return {role: data[:-BEHIND].tobytes() for role, data in outputs.items()}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
