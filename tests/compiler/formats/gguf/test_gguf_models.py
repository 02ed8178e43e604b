"""Models in GGUF files: the logits of transformers, the checkpoint's own integers, and files that we refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import TOKENS
from gguf import GGMLQuantizationType as Type
from gguf_files import MODELS, WIDER, make_gguf
from tolerances import relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference

LIMIT = 5e-5
# Architectures whose files transformers reads.
READ_BY_TRANSFORMERS = ("llama", "qwen3", "gemma3", "phi3")
# Values that transformers assumes instead of reading them from the file.
ASSUMED: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1},
    "gemma3": {
        "head_dim": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
}
K_M = {"attn_v": Type.Q6_K, "ffn_down": Type.Q6_K, "token_embd": Type.Q6_K, "ffn_up": Type.Q5_K}


def logits_of(path: Path) -> npt.NDArray[np.float32]:
    reference = CheckpointReference(load(str(path)), len(TOKENS))
    return reference.logits(next(iter(reference.hidden([TOKENS]))))


def logits_of_transformers(path: Path) -> npt.NDArray[np.float32]:
    """The logits that transformers computes from the GGUF file."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.no_grad():
        result: npt.NDArray[np.float32] = model(torch.tensor([TOKENS])).logits[0].numpy()
    return result


@pytest.mark.parametrize("architecture", MODELS)
def test_logits_of_float_weights_are_those_of_the_model(architecture: str, tmp_path: Path) -> None:
    path, expected = make_gguf(architecture, tmp_path)
    assert relative_error(logits_of(path), expected) < LIMIT


@pytest.mark.parametrize("architecture", READ_BY_TRANSFORMERS)
def test_logits_of_a_mixed_file_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    def stored(name: str) -> Type:
        return next((kind for part, kind in K_M.items() if part in name), Type.Q4_K)

    sizes = {**WIDER, **ASSUMED.get(architecture, {})}
    path, _ = make_gguf(architecture, tmp_path, stored, sizes, tokenizer__ggml__padding_token_id=0)
    checkpoint = load(str(path))
    assert set(checkpoint.stored_forms) == {"q4g32b_i8", "q5g32b_i8", "q6g16_i8"}
    # Sharp attention amplifies differences in the order of sums.
    assert relative_error(logits_of(path), logits_of_transformers(path)) < 10 * LIMIT
