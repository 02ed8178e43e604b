"""CPUs: kernels as one shared library for x86-64 or aarch64 (`lower.py`), run on threads by `runner.py`."""
