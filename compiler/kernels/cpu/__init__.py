"""Kernel templates for CPUs: loops over vectors instead of workgroups of threads.

Every row of a result is a function of that row alone, bit for bit, whatever else is in the batch: sums are taken in an order that depends
on neither the batch nor the number of threads. Products are added with `math.fused`, so that a compiler has no choice either.
"""
