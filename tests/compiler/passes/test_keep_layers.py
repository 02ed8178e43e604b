"""Graphs that are cut to some layers compute what transformers computes without the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_models import make_checkpoint
from tolerances import F32

from nearfar.compiler.arch import by_model_type
from nearfar.compiler.formats import load
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.graph import Parameter
from nearfar.compiler.ir.pages import PAGES
from nearfar.compiler.passes.keep_layers import keep_layers, layers_of
from nearfar.compiler.pipeline.weights import read_rows
from nearfar.compiler.quant.base import FloatArray
from nearfar.compiler.runtime.graph_walk import Execution, walk
from nearfar.compiler.runtime.windows import window_inputs

TOKENS = [3, 100, 7, 400, 12, 250, 31, 8, 77, 9]


@pytest.mark.parametrize("name", ["llama", "mistral", "phi3", "qwen3"])
def test_a_cut_graph_is_the_model_without_these_layers(name: str, tmp_path: Path) -> None:
    import torch
    import transformers

    make_checkpoint(name, tmp_path, num_hidden_layers=5)
    checkpoint = load(str(tmp_path))
    spec = checkpoint.spec
    window = len(TOKENS)
    cut = keep_layers(by_model_type(spec.model_type).forward(spec, window, window), {0, 3})
    assert cut is not None
    inputs, dims = window_inputs([TOKENS], window)
    rows = {"sample_rows": np.arange(window, dtype=np.int32)}
    pages = {
        state: np.zeros([evaluate(size, {"P": 1}) for size in value.shape], np.float32)
        for state, value in cut.states.items()
        if value.shape[0] == PAGES
    }
    assert sorted(pages) == ["layers.0.kv", "layers.3.kv"]
    execution = Execution(cut, {**inputs, **rows, **pages}, {**dims, "R": window})

    def read(parameter: Parameter, start: int, stop: int) -> FloatArray:
        return read_rows(checkpoint, parameter, start, stop)

    (logits,) = walk(cut, cut.outputs["logits"], [execution], read)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    model.model.layers = torch.nn.ModuleList([model.model.layers[0], model.model.layers[3]])
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    model.config.num_hidden_layers = 2
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    assert np.abs(logits - expected).max() / np.abs(expected).max() < F32


def test_a_layer_that_reads_what_another_one_stored_has_two_numbers() -> None:
    read = [
        ["embed"],
        ["layers.0.q"],
        ["layers.0.kv", "slots"],
        ["x"],
        ["layers.1.q"],
        ["layers.0.kv"],
        ["norm"],
        ["y"],
    ]
    stored = {name for names in read for name in names} - {"slots", "x", "y"}
    assert layers_of(read, stored) == [None, 0, 0, 0, 1, 0, None, None]
