"""Load with faults: clients of five APIs while processes are killed, files are read again and models come and go. See
__main__.py.
"""
