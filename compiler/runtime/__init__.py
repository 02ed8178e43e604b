"""Running a bundle's plan from Python: batches, the runner's interface, the numpy reference, and generation with one
sequence.
"""
