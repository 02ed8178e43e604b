"""CUDA: kernels in CUDA C++ and as cubins, and a runner on the driver's API."""
