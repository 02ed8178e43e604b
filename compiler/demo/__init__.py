"""The checkpoints of the demo models: two small Llamas, one for devices, one for servers, and a small BERT that embeds
texts. `tests/demo_model` and `tests/demo_encoder` train them.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

NAME = "nearfar-demo"
FAR_NAME = "nearfar-demo-far"
ENCODER_NAME = "nearfar-demo-encoder"
CHECKPOINT = Path(__file__).parent / NAME
FAR_CHECKPOINT = Path(__file__).parent / FAR_NAME
ENCODER_CHECKPOINT = Path(__file__).parent / ENCODER_NAME
# The names that the command line accepts.
DEMOS: Mapping[str, Path] = MappingProxyType(
    {"demo": CHECKPOINT, "demo-far": FAR_CHECKPOINT, "demo-encoder": ENCODER_CHECKPOINT}
)
