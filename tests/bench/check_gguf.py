"""Checks that llama.cpp (xllamacpp) computes the same distributions of next tokens as this project from exported files:
a small model of each architecture with float32 weights, keys and values.

``make check-gguf`` prints the largest difference for each model, and fails if one is too large.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import Shapes, published, write_checkpoint
from llama_runner import LlamaCpp

from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats.gguf.architectures import ARCHITECTURES, architecture_for
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, Limits, make_batch
from nearfar.targets.cpu.runner import CpuRunner

VOCAB_SIZE = 1000
TOKENS = [(7 * i * i + 3 * i + 5) % VOCAB_SIZE for i in range(64)]
# Relative to the largest logit. llama.cpp looks up GELU in a float16 table.
MOST = 5e-3
# A published model of each architecture with fewer and smaller layers. Gemma's windows are shorter than the prompt.
SMALL = {"num_hidden_layers": 8, "vocab_size": VOCAB_SIZE, "intermediate_size": 416}
MODELS: dict[str, dict[str, Any]] = {
    "gemma-2-2b-it": {"hidden_size": 288, "sliding_window": 20, "torch_dtype": "float32"},
    "gemma-3-1b-it": {"hidden_size": 288, "sliding_window": 20, "torch_dtype": "float32"},
    "granite-3.3-2b-instruct": {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    "olmo-2-0425-1b-instruct": {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4},
    "phi-4-mini-instruct": {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen2.5-0.5b-instruct": {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3-0.6b": {"hidden_size": 288, "num_attention_heads": 4, "num_key_value_heads": 2},
    "smollm2-360m-instruct": {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
    "smollm3-3b": {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2},
}
# Lists with a value for each layer, which follow from other keys.
DERIVED = ("layer_types", "no_rope_layers")
# Special tokens that the small vocabulary does not have.
SPECIAL = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def main() -> None:
    checked = set()
    for name, sizes in MODELS.items():
        shapes = published(name)
        config = {key: value for key, value in shapes.config.items() if key not in DERIVED}
        small = Shapes(name, {**config, **SMALL, **SPECIAL, **sizes})
        with tempfile.TemporaryDirectory() as folder:
            difference, agreeing, compared = check(small, Path(folder))
        print(f"{name}: differs by {difference:.1e} of the largest logit, {agreeing} of {compared} tokens agree")
        if not (difference < MOST and compared >= len(TOKENS) // 2):
            raise SystemExit(f"{name}: llama.cpp computes another model: correct compiler/export")
        checked.add(architecture_for(small.config["model_type"]))
    assert checked == ARCHITECTURES.keys(), "each architecture has a model here"


def check(shapes: Shapes, folder: Path) -> tuple[float, int, int]:
    """The largest difference, the number of rows for which both choose the same token, and that of all compared rows:
    llama.cpp's server leaves out those whose likeliest token is a part of a character.
    """
    # Sharp attention: a wrong rotation or window changes the logits.
    checkpoint = write_checkpoint(shapes, folder / "checkpoint", lambda columns: columns**-0.5)
    options = CompileOptions(target="cpu", quantization="f32", context=128, self_test=False)
    bundle = compile_model(str(checkpoint), folder / "bundle", options)
    runner = CpuRunner(bundle, limits=Limits(tokens=64, rows=64, pages=8), threads=1, activation="float32")
    rows = range(len(TOKENS))
    expected = runner.forward(make_batch([Chunk(TOKENS, 0, range(4), rows)], 16)).logits.copy()
    runner.close()
    export_gguf(bundle, folder / "model.gguf", GgufOptions())
    theirs, difference, agreeing, compared = LlamaCpp(folder / "model.gguf"), 0.0, 0, 0
    for row, logits in enumerate(expected.astype(np.float64)):
        found = theirs.logprobs(TOKENS[: row + 1], VOCAB_SIZE)
        if found is not None:
            logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            difference = max(difference, float(np.abs(found - logprobs).max()))
            agreeing, compared = agreeing + int(found.argmax() == logits.argmax()), compared + 1
    return difference / float(np.abs(expected).max()), agreeing, compared


if __name__ == "__main__":
    main()
