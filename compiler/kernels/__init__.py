"""Kernel templates: Python functions that write one TIR function each, for the sizes and dtypes of one step."""
