"""Bundles as folders for transformers: the logits of the bundle, and its tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import CompileTiny
from decoder_families import TOKENS
from draft_heads import DraftHeads
from plain_target import compile_plain

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.export.bundle_tensors import bundle_tensors
from nearfar.compiler.export.safetensors_folder import export_safetensors
from nearfar.compiler.formats import load
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import OutputError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits

PROMPT = [(7 * i * i + 3 * i + 5) % 509 for i in range(41)]
NEW_TOKENS = 12


# Rows of 70 and 72 weights, biases, a rotation with factors; fused and partly rotated projections; tied embeddings.
@pytest.mark.parametrize("name", ["llama", "phi3", "qwen3"])
def test_transformers_continues_with_the_same_tokens(name: str, compile_numpy: CompileTiny, tmp_path: Path) -> None:
    import torch
    import transformers

    bundle = open_bundle(compile_numpy(name, target="webgpu", self_test=False))
    export_safetensors(bundle, tmp_path / "x", "float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    ours = ReferenceRunner(bundle, limits=Limits(tokens=64, rows=64, pages=16))
    answer = model.generate(torch.tensor([PROMPT]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    tokens = answer[0].tolist()
    assert len(tokens) == len(PROMPT) + NEW_TOKENS
    logits = ours.forward(make_batch([Chunk(tokens, 0, range(4), range(len(tokens)))], 16)).logits
    assert logits[len(PROMPT) - 1 : -1].argmax(-1).tolist() == tokens[len(PROMPT) :]
    with torch.no_grad():
        theirs = model(torch.tensor([tokens])).logits[0].numpy()
    assert np.abs(theirs - logits).max() < 1e-4 * np.abs(logits).max()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "<s>Hi"


def test_heads_that_draft_tokens_and_layers_with_states_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    import torch
    import transformers

    heads = DraftHeads(tmp_path / "checkpoint")
    export_safetensors(
        compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 64), tmp_path / "x", "float32"
    )
    given, read = load(str(tmp_path / "checkpoint")), load(str(tmp_path / "x"))
    assert read.spec == given.spec
    assert read.spec.draft_layers == 1
    assert read.tensors.keys() == given.tensors.keys()
    for name, tensor in given.tensors.items():
        assert read.tensors[name].shape == tensor.shape
        # Norms are stored with 1 added.
        expected = tensor.rows(0, tensor.shape[0])
        np.testing.assert_allclose(read.tensors[name].rows(0, tensor.shape[0]), expected, rtol=0, atol=1e-6)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    with torch.no_grad():
        theirs = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert np.abs(theirs - heads.logits).max() < 1e-4 * np.abs(heads.logits).max()


def test_float16_notes_its_error_and_is_read_again(compile_numpy: CompileTiny, tmp_path: Path) -> None:
    bundle = open_bundle(compile_numpy("qwen3", target="webgpu", self_test=False))
    notes: list[str] = []
    assert export_safetensors(bundle, tmp_path / "x", note=notes.append) == {"float16": len(bundle_tensors(bundle))}
    assert "float16 rounds weights" in notes[0]
    read = load(str(tmp_path / "x"))
    assert read.spec == bundle.manifest.spec
    for name, tensor in bundle_tensors(bundle).items():
        values = tensor.rows(np.arange(tensor.shape[0]))
        np.testing.assert_array_equal(read.tensors[name].rows(0, tensor.shape[0]), values.astype(np.float16))


def test_only_an_exported_folder_is_replaced(compile_numpy: CompileTiny, tmp_path: Path) -> None:
    bundle = open_bundle(compile_numpy("qwen3", target="webgpu", self_test=False))
    export_safetensors(bundle, tmp_path / "x")
    with pytest.raises(OutputError, match="exists already"):
        export_safetensors(bundle, tmp_path / "x")
    export_safetensors(bundle, tmp_path / "x", "float32", force=True)
    assert load(str(tmp_path / "x")).tensors["model.norm.weight"].dtype == "F32"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("mine")
    with pytest.raises(OutputError, match=r"is not a folder with config\.json"):
        export_safetensors(bundle, tmp_path / "mine", force=True)
