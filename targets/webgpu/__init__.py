"""WebGPU: kernels as WGSL within the default limits of every device (`lower.py`), run by the TypeScript runtime or,
from Python, by `runner.py`.
"""
