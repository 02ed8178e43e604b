"""A soak test of the server: honest clients during attacks, whose answers must equal those given alone. See
__main__.py.
"""
