"""A model and an encoder for tests in a browser whose subject is not their arithmetic: they have one narrow layer, so
they load in a third of the time of the other tiny models.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from light_bundle import few_kernels, lighten
from made_once import kept_folder, made_once
from tiny_models import make_checkpoint, make_embedding_checkpoint

from nearfar.compiler.bundle.manifest import MANIFEST_FILE

NAME = "page-model"
SIZES = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}


def page_bundle(keep: Collection[str] = (), layers: int = 1, **options: Any) -> Path:
    """The model's bundle for 256 tokens, with few kernels besides those of the ops in ``keep``; no token ends its
    answers. ``options`` are those of `CompileOptions`. Tests must not change it.
    """
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    chosen = CompileOptions(**{"quantization": "f32", "context": 256, "activations": ("float32",), **options})

    def make(folder: Path) -> None:
        with TemporaryDirectory() as parent, few_kernels(keep):
            checkpoint = Path(parent) / NAME
            sizes = {**SIZES, "num_hidden_layers": layers, "max_position_embeddings": max(512, chosen.context or 0)}
            make_checkpoint("llama_plain", checkpoint, **sizes)
            compile_model(str(checkpoint), folder, chosen)
        # A test knows how long its answers are.
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
        manifest["spec"]["eos_token_ids"] = []
        (folder / MANIFEST_FILE).write_text(json.dumps(manifest))

    key = hashlib.sha256(f"{sorted(keep)} {layers} {chosen}".encode()).hexdigest()[:12]
    return made_once(kept_folder("bundles") / f"{NAME}-{key}", make)


def page_encoder() -> Path:
    """The encoder's bundle, for texts of 128 tokens, with the kernels for texts. Tests must not change it."""
    from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

    def make(folder: Path) -> None:
        with TemporaryDirectory() as parent, few_kernels(tokens="many"):
            make_embedding_checkpoint(Path(parent), **SIZES, head_dim=32)
            compile_model(parent, folder, CompileOptions(quantization="f32", context=128, activations=("float32",)))
        lighten(folder, tokens="many")

    return made_once(kept_folder("bundles") / "page-encoder", make)
