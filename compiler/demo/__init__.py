"""The demo models: two small Llamas, one for devices, one for servers; a small BERT that embeds texts; a small SmolVLM
that answers questions about drawn pictures; a small Whisper that writes down spoken commands; and a small ModernBERT
that finds what is private. `tests/demo_model`, `tests/demo_encoder`, `tests/demo_eyes`, `tests/demo_ears` and
`tests/demo_finder` train them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

FOLDER = Path(__file__).parent
NAME = "nearfar-demo"
FAR_NAME = "nearfar-demo-far"
ENCODER_NAME = "nearfar-demo-encoder"
EYES_NAME = "nearfar-demo-eyes"
EARS_NAME = "nearfar-demo-ears"
FINDER_NAME = "nearfar-demo-finder"
CHECKPOINT = FOLDER / NAME
FAR_CHECKPOINT = FOLDER / FAR_NAME
ENCODER_CHECKPOINT = FOLDER / ENCODER_NAME
EYES_CHECKPOINT = FOLDER / EYES_NAME
EARS_CHECKPOINT = FOLDER / EARS_NAME
FINDER_CHECKPOINT = FOLDER / FINDER_NAME
# Pictures that `demo-eyes` was not trained on, with questions.
PICTURES = tuple(
    (FOLDER / "pictures" / name, question)
    for name, question in (
        ("shapes.png", "What colour is the circle?"),
        ("shapes.png", "Which shape is green?"),
        ("triangles.png", "How many triangles are there?"),
        ("digit.png", "Which digit is this?"),
    )
)
# Commands of voices that `demo-ears` was not trained on; `demo` carries them out.
RECORDINGS = tuple(FOLDER / "recordings" / name for name in ("light.wav", "thermostat.wav", "door.wav"))


@dataclass(frozen=True, slots=True)
class DemoModel:
    """``name``: what the command line accepts. ``purpose``: what `nearfar demo --list` says of it."""

    name: str
    checkpoint: Path
    purpose: str

    def size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.checkpoint.rglob("*") if file.is_file())


MODELS = (
    DemoModel("demo", CHECKPOINT, "carries out home commands, adds, sorts, tells stories"),
    DemoModel("demo-far", FAR_CHECKPOINT, "does so for the server's side, and has harder tasks"),
    DemoModel("demo-encoder", ENCODER_CHECKPOINT, "searches documents"),
    DemoModel("demo-eyes", EYES_CHECKPOINT, "answers questions about drawn shapes and digits"),
    DemoModel("demo-ears", EARS_CHECKPOINT, "writes down home commands of synthetic voices"),
    DemoModel("demo-finder", FINDER_CHECKPOINT, "finds names, addresses and other private texts"),
)
DEMOS: Mapping[str, Path] = MappingProxyType({model.name: model.checkpoint for model in MODELS})
