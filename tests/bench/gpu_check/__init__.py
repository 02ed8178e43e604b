"""Everything that only a GPU can check, in one command. See __main__.py."""
