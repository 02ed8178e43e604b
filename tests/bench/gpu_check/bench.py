"""Runs `bench_cuda.py` on the prepared bundle with Qwen3-0.6B's shapes. Its weights are written first if they are
missing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import bench_cuda

from .bundles import with_random_weights
from .prepared import LARGE

if __name__ == "__main__":
    bundle = Path(sys.argv[1]) / LARGE
    with_random_weights(bundle)
    sys.argv = ["bench_cuda.py", "--bundle", str(bundle), "--folder", sys.argv[2]]
    bench_cuda.main()
