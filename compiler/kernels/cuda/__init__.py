"""Kernel templates for CUDA alone, and the functions that they call."""
