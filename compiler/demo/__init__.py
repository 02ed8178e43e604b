"""The demo model: a small Llama trained from nothing on text that this folder generates."""

from pathlib import Path

NAME = "nearfar-demo"
# The checkpoint in the repository.
CHECKPOINT = Path(__file__).parent / NAME
