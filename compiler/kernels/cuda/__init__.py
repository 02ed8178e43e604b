"""Kernel templates for CUDA alone: what they call is in `targets/cuda/prelude.cuh`."""
