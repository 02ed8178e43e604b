"""The demo model: a small Llama trained from nothing on text that this folder generates; and the recipe of a larger one."""

from pathlib import Path

NAME = "nearfar-demo"
FAR_NAME = "nearfar-demo-far"
# The checkpoint in the repository.
CHECKPOINT = Path(__file__).parent / NAME
