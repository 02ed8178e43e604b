"""One text is continued greedily on every target that runs here; each returns the tokens of the numpy reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from decoder_families import TOKENS, make_family
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.target import open_runner
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

NEW_TOKENS = 64
CONTEXT = len(TOKENS) + NEW_TOKENS
# Every dtype represents this square root exactly, because mlx-lm rounds Gemma's embedding factor.
CHANGES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"hidden_size": 144},
    "gemma4_text": {"hidden_size": 144},
    "phi3_long": {},
}


@pytest.mark.exhaustive
@pytest.mark.usefixtures("mlx", "compiled_once")
@pytest.mark.parametrize("family", CHANGES)
def test_64_greedy_tokens_are_the_same_on_every_target(family: str, tmp_path: Path) -> None:
    """Windows, two rotations, shared keys and values, and LongRoPE beyond the original context."""
    checkpoint = tmp_path / "checkpoint"
    make_family(family, checkpoint, **CHANGES[family])
    reference = ReferenceRunner(compile_plain(checkpoint, tmp_path / "plan", "f32", CONTEXT))
    expected = list(generate(reference, TOKENS, NEW_TOKENS, Sampler()))
    assert len(expected) == NEW_TOKENS
    for target in ("cpu", "onnx", "mlx"):
        options = CompileOptions(target=target, quantization="f32", context=CONTEXT, activations=("float32",))
        compile_any(str(checkpoint), tmp_path / target, options)
        runner = open_runner(target, open_any(tmp_path / target), Limits(tokens=64, sequences=1))
        assert list(generate(runner, TOKENS, NEW_TOKENS, Sampler())) == expected, target
        runner.close()
