"""The reference runner against transformers, and its batches against sequences run alone. `ragged.py` contains the
batches for all runners.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ragged import CHUNK_SIZES, chunked_logits, ragged_logits, sequences_alone
from tiny_models import CHECKPOINTS
from tolerances import F16, F32, relative_error

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.runtime.errors import DeviceError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

CompileTiny = Callable[..., Path]


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("chunk", CHUNK_SIZES)
def test_logits_are_those_of_transformers_in_chunks_of_any_size(
    checkpoint: str,
    chunk: int,
    compile_numpy: CompileTiny,
    transformers_logits: Callable[[str], np.ndarray],
    prompt_token_ids: list[int],
) -> None:
    runner = ReferenceRunner(open_bundle(compile_numpy(checkpoint, "f32")))
    found = chunked_logits(runner, prompt_token_ids, chunk)
    assert relative_error(found, transformers_logits(checkpoint)) < F32


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_ragged_batch_computes_what_each_sequence_alone_does(checkpoint: str, compile_numpy: CompileTiny) -> None:
    bundle = open_bundle(compile_numpy(checkpoint, "q4f16"))
    found = ragged_logits(ReferenceRunner(bundle, limits=Limits(sequences=8, pages=20)))
    for mine, alone in zip(
        found, sequences_alone(ReferenceRunner(bundle, limits=Limits(sequences=8, pages=20))), strict=True
    ):
        assert relative_error(mine, alone) < F32


@pytest.mark.parametrize("quantization", ["q4f16", "q8f16", "f16"])
def test_f16_activations_stay_close_to_f32_ones(
    quantization: str, compile_numpy: CompileTiny, prompt_token_ids: list[int]
) -> None:
    bundle = open_bundle(compile_numpy("qwen3", quantization))
    half, single = (
        chunked_logits(ReferenceRunner(bundle, activation=dtype), prompt_token_ids, 75)
        for dtype in ("float16", "float32")
    )
    error = relative_error(half, single)
    assert 0 < error < F16


def test_float32_is_the_default_if_the_bundle_offers_it(compile_numpy: CompileTiny) -> None:
    assert ReferenceRunner(open_bundle(compile_numpy("qwen3", "q4f16"))).activation == "float32"
    only_half = compile_numpy("qwen3", "q4f16", activations=("float16",))
    assert ReferenceRunner(open_bundle(only_half)).activation == "float16"


def test_an_activation_that_the_bundle_does_not_offer_is_refused(compile_numpy: CompileTiny) -> None:
    with pytest.raises(DeviceError, match="compiled for float32 activations, not for float16"):
        ReferenceRunner(open_bundle(compile_numpy("qwen3", "f32")), activation="float16")
