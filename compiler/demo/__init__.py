"""The demo models: small Llamas trained from nothing on text that this folder generates, one for devices and one for servers."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

NAME = "nearfar-demo"
FAR_NAME = "nearfar-demo-far"
# The checkpoints in the repository.
CHECKPOINT = Path(__file__).parent / NAME
FAR_CHECKPOINT = Path(__file__).parent / FAR_NAME
# By what the command line calls them.
DEMOS: Mapping[str, Path] = MappingProxyType({"demo": CHECKPOINT, "demo-far": FAR_CHECKPOINT})
