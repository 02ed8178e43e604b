"""The bundles of tiny models that see, with random weights, for tests in a browser. Their chats have pictures and
videos.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from light_bundle import few_kernels, lighten
from made_once import kept_folder, made_once
from vision_families import make_vision

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% elif part['type'] == 'video' %}{{ '<video>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True)
class Eyes:
    """The checkpoint of a model, and its bundle with its self-test. Tests must not change either."""

    checkpoint: Path
    bundle: Path


def page_eyes(family: str = "smolvlm") -> Eyes:
    from nearfar.compiler.formats import load
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    def make(folder: Path) -> None:
        checkpoint = folder / "checkpoint"
        make_vision(family, checkpoint)
        spec = load(str(checkpoint)).images
        assert spec is not None
        (checkpoint / "chat_template.jinja").write_text(TEMPLATE.replace("<image>", spec.prompt.mark))
        options = CompileOptions(target="webgpu", quantization="f32", context=256, activations=("float32",))
        with few_kernels():
            compile_model(str(checkpoint), folder / "bundle", options)
        lighten(folder / "bundle", self_test=True)

    made = made_once(kept_folder("bundles") / f"page-eyes-{family}", make)
    return Eyes(made / "checkpoint", made / "bundle")
