"""Kernel templates for CPUs: loops over vectors instead of workgroups of threads.

Every row of a result depends, bit for bit, only on that row of the input: the order of sums depends on neither the
batch nor the number of threads. Products are added with `math.fused`, so that a compiler cannot change the order or the
rounding.
"""
