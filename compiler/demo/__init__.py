"""The checkpoints of the demo models: two small Llamas, one for devices, one for servers. `tests/demo_model` trains
them.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

NAME = "nearfar-demo"
FAR_NAME = "nearfar-demo-far"
CHECKPOINT = Path(__file__).parent / NAME
FAR_CHECKPOINT = Path(__file__).parent / FAR_NAME
# The names that the command line accepts.
DEMOS: Mapping[str, Path] = MappingProxyType({"demo": CHECKPOINT, "demo-far": FAR_CHECKPOINT})
