"""The checkpoints of the demo models: two small Llamas, one for devices, one for servers; a small BERT that embeds
texts; and a small SmolVLM that answers questions about drawn pictures. `tests/demo_model`,
`tests/demo_encoder` and `tests/demo_eyes` train them.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

NAME = "nearfar-demo"
FAR_NAME = "nearfar-demo-far"
ENCODER_NAME = "nearfar-demo-encoder"
EYES_NAME = "nearfar-demo-eyes"
CHECKPOINT = Path(__file__).parent / NAME
FAR_CHECKPOINT = Path(__file__).parent / FAR_NAME
ENCODER_CHECKPOINT = Path(__file__).parent / ENCODER_NAME
EYES_CHECKPOINT = Path(__file__).parent / EYES_NAME
# Pictures that `demo-eyes` was not trained on, each with a question.
PICTURES = tuple(
    (Path(__file__).parent / "pictures" / name, question)
    for name, question in (
        ("shapes.png", "What colour is the circle?"),
        ("triangles.png", "How many triangles are there?"),
        ("digit.png", "Which digit is this?"),
    )
)
# The names that the command line accepts.
DEMOS: Mapping[str, Path] = MappingProxyType(
    {
        "demo": CHECKPOINT,
        "demo-far": FAR_CHECKPOINT,
        "demo-encoder": ENCODER_CHECKPOINT,
        "demo-eyes": EYES_CHECKPOINT,
    }
)
