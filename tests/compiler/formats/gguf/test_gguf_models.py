"""Models in GGUF files: the logits of transformers, the checkpoint's own integers, and files that we refuse."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from decoder_families import TOKENS
from draft_heads import DraftHeads
from gguf import GGMLQuantizationType as Type
from gguf_files import MODELS, WIDER, make_gguf, write_gguf
from tolerances import relative_error

from nearfar.compiler.formats import load
from nearfar.compiler.formats.gguf import checkpoint
from nearfar.compiler.formats.gguf.container import read_container
from nearfar.compiler.measure.checkpoint_reference import CheckpointReference
from nearfar.compiler.pipeline.graphs import graphs_of
from nearfar.compiler.pipeline.weights import check_tensors
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError

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


# Values of a number: none, below, and beyond what sizes and tokens can be.
ODD_INTEGERS = (0, -1, 1, 3, 2**31 - 1, 2**32, 2**63, 2**64 - 1)
ODD_FLOATS = (0.0, -1.0, 1e-300, 1e300, math.inf, math.nan)


# Their keys are those of others.
KNOWN_KEYS = ("olmoe", "granitemoe", "lfm2moe", "granitehybrid", "mamba2")


@pytest.mark.parametrize("architecture", [each for each in MODELS if each not in KNOWN_KEYS])
def test_any_number_of_the_metadata_is_used_or_refused_by_a_typed_error(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    if architecture in ("llama", "qwen2"):
        yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
        given = {f"{architecture}__rope__scaling__{key}": value for key, value in yarn.items()}
    path, _ = make_gguf(architecture, tmp_path, **given)
    whole = read_container(path)
    numbers = {key: each for key, each in whole.metadata.items() if isinstance(each, int | float | np.ndarray)}
    refused = 0
    for key, old in numbers.items():
        if isinstance(old, bool) or key.startswith("general."):
            continue
        values: tuple[Any, ...] = ODD_FLOATS if isinstance(old, float) else ODD_INTEGERS
        if isinstance(old, np.ndarray):
            values = (old[:0], old[:1], ~old if old.dtype == bool else -old, old * 0)
        for value in values:
            changed = replace(whole, metadata={**whole.metadata, key: value})
            monkeypatch.setattr(checkpoint, "read_parts", lambda _, changed=changed: changed)
            with suppress(NearfarError):
                refused += 1
                found = load(str(path))
                for graph in graphs_of(found, context=4).values():
                    check_tensors(found, graph.parameters)
                refused -= 1
    assert refused > 50


def test_heads_that_draft_tokens_are_those_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DraftHeads(tmp_path, **MODELS["qwen35"][1])
    given, path = load(str(tmp_path)), write_gguf("qwen35", tmp_path)
    read = load(str(path))
    assert read.spec.draft_layers == given.spec.draft_layers == 1
    assert read.spec.num_layers == given.spec.num_layers
    assert read.tensors.keys() == given.tensors.keys()
    for name in (each for each in given.tensors if each.startswith("mtp.")):
        rows = given.tensors[name].shape[0]
        # Norms are stored plus one.
        np.testing.assert_allclose(read.tensors[name].rows(0, rows), given.tensors[name].rows(0, rows), atol=1e-6)
    whole = read_container(path)
    own = {"blk.3.nextn.shared_head_head.weight": whole.tensors["token_embd.weight"]}
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: replace(whole, tensors={**whole.tensors, **own}))
    without = load(str(path))
    assert without.spec.draft_layers == 0
    assert not any(name.startswith("mtp.") for name in without.tensors)
    assert without.notes[0].endswith("(mtp.*, 16 tensors): an embedding or a head of their own is not supported")
    wrong = {**whole.metadata, "qwen35.nextn_predict_layers": 2}
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: replace(whole, metadata=wrong))
    with pytest.raises(CheckpointError, match=r"layer 2 of 4 should be .* \('nextn_predict_layers' is 2\)"):
        load(str(path))


def test_more_heads_than_columns_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_container(make_gguf("qwen2", tmp_path)[0])
    changed = replace(whole, metadata={**whole.metadata, "qwen2.attention.head_count": 129})
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: changed)
    with pytest.raises(CheckpointError, match=r"'qwen2\.attention\.head_count' is 129, more than .* is 128"):
        load(str(whole.path))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "llama.attention.value_length",
            np.array([32, 16]),
            r"'llama\.attention\.value_length' is array\(\[32, 16\]\)",
        ),
        ("llama.attention.value_length", np.array([]), r"'llama\.attention\.value_length' is array"),
        ("tokenizer.ggml.merges", ["a b", None], r"'tokenizer\.ggml\.merges' is .* expected a list of texts"),
        ("tokenizer.ggml.tokens", [1, 2], r"'tokenizer\.ggml\.tokens' is .* expected a list of texts"),
    ],
)
def test_lists_of_other_values_are_named(
    key: str, value: object, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_container(make_gguf("llama", tmp_path)[0])
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: replace(whole, metadata={**whole.metadata, key: value}))
    with pytest.raises(CheckpointError, match=message):
        load(str(whole.path))


def test_a_length_for_each_layer_may_be_the_same_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, expected = make_gguf("llama", tmp_path)
    whole = read_container(path)
    lengths = {f"llama.attention.{name}_length": np.array([32, 32]) for name in ("key", "value")}
    monkeypatch.setattr(checkpoint, "read_parts", lambda _: replace(whole, metadata={**whole.metadata, **lengths}))
    assert relative_error(logits_of(path), expected) < LIMIT
