"""Checks that llama.cpp (xllamacpp) computes the same distributions of next tokens as this project from exported files:
the models of `gguf_files.py` with float32 weights, keys and values.

``make check-gguf`` prints the largest difference for each model, and fails if one is too large. Names of models as
arguments check only these.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from decoder_families import TOKENS
from gguf_files import MODELS, make_gguf
from light_bundle import few_kernels, one_compilation
from llama_runner import LlamaCpp

from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.formats.gguf.architectures import ARCHITECTURES
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.cpu.runner import CpuRunner

# Relative to the largest logit. llama.cpp looks up GELU in a float16 table, and rounds the ends of YaRN's ramp.
MOST = 1e-2


def main() -> None:
    assert {name.removesuffix("_experts") for name in MODELS} == ARCHITECTURES.keys(), "each architecture has a model"
    for name in sys.argv[1:] or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            difference, relative, agreeing, compared = check(name, Path(folder))
        print(
            f"{name}: log-probabilities differ by {difference:.1e}, {relative:.1e} of the largest logit; {agreeing} of "
            f"{compared} tokens agree",
            flush=True,
        )
        if not (relative < MOST and compared >= len(TOKENS) // 4):
            raise SystemExit(f"{name}: llama.cpp computes another model: correct compiler/export")


def check(name: str, folder: Path) -> tuple[float, float, int, int]:
    """The largest difference, the same relative to the largest logit, the number of rows for which both choose the same
    token, and that of all compared rows: llama.cpp's server leaves out those whose likeliest token is a part of a
    character.
    """
    make_gguf(name, folder)
    (folder / "model.gguf").unlink()
    options = CompileOptions(target="cpu", quantization="f32", context=128, self_test=False)
    with few_kernels(), one_compilation():
        bundle = compile_model(str(folder), folder / "bundle", options)
    runner = CpuRunner(bundle, limits=Limits(tokens=64, rows=64, pages=8), threads=1, activation="float32")
    state = (0, 0) if bundle.manifest.spec.states is not None else None
    chunk = Chunk(TOKENS, 0, range(4), range(len(TOKENS)), state=state)
    expected = runner.forward(make_batch([chunk], 16)).logits.copy()
    runner.close()
    export_gguf(bundle, folder / "model.gguf", GgufOptions())
    vocab_size = bundle.manifest.spec.vocab_size
    theirs, difference, agreeing, compared = LlamaCpp(folder / "model.gguf"), 0.0, 0, 0
    # Every second row: llama.cpp computes each prompt anew.
    for row, logits in list(enumerate(expected.astype(np.float64)))[::2]:
        found = theirs.logprobs(TOKENS[: row + 1], vocab_size)
        if found is not None:
            logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            difference = max(difference, float(np.nanmax(np.abs(found - logprobs))))
            agreeing, compared = agreeing + int(np.nanargmax(found) == logits.argmax()), compared + 1
    return difference, difference / float(np.abs(expected).max()), agreeing, compared


if __name__ == "__main__":
    main()
