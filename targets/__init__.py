"""Targets: for each kind of device, the variants of every step, their lowering, and a runner. The command line loads
them by name.
"""
