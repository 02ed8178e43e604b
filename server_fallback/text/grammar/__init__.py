"""Grammars: what an answer may be, as a constraint on its tokens."""
