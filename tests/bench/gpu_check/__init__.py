"""Everything that only an NVIDIA GPU can check, in one command. See __main__.py."""
