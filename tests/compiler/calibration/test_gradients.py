"""Gradients against torch's: of every weight of whole models, whose families have all ops between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from decoder_families import FAMILIES, TOKENS, make_family

from nearfar.compiler.arch import by_model_type
from nearfar.compiler.calibration import tape
from nearfar.compiler.calibration.importance import head_backward
from nearfar.compiler.formats import load
from nearfar.compiler.ir.graph import Graph, Node, Parameter
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.pipeline.weights import read_rows
from nearfar.compiler.runtime.errors import UnsupportedModel
from nearfar.compiler.runtime.windows import window_inputs, without_head

# Soft-caps and windows; LayerNorm without a bias and a parallel feed-forward; biases of norms; scales and shared keys;
# a head with a bias, and no gate.
MODELS = ("gemma2", "cohere2", "stablelm", "gemma4_text", "phi")
# Those whose layers are computed again on the way back, as in a large model.
SEGMENTED = ("cohere2", "gemma4_text")
WINDOW = 64
# The choice of experts has no gradient.
MIXTURES = ("gemma4_experts", "gpt_oss", "granitemoe", "olmoe", "qwen3_moe")


class Gradients:
    """The gradient of every parameter, from those of projections, tables and vectors."""

    def __init__(self) -> None:
        self.found: dict[str, Array] = {}

    def projection(self, parameter: Parameter, x: Array, gradient: Array) -> None:
        self._add(parameter, gradient.T @ x)

    def table(self, parameter: Parameter, token_ids: Array, gradient: Array) -> None:
        rows = np.zeros(parameter.shape, np.float32)
        np.add.at(rows, token_ids, gradient)
        self._add(parameter, rows)

    def vector(self, parameter: Parameter, gradient: Array) -> None:
        self._add(parameter, gradient)

    def _add(self, parameter: Parameter, gradient: Array) -> None:
        assert gradient.shape == parameter.shape
        self.found[parameter.name] = self.found.get(parameter.name, 0) + gradient


@pytest.mark.parametrize(
    "name",
    [
        each if each in MODELS else pytest.param(each, marks=pytest.mark.exhaustive)
        for each in FAMILIES
        if each not in MIXTURES
    ],
)
def test_gradients_of_all_weights_are_those_of_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    if name in SEGMENTED:
        monkeypatch.setattr(tape, "STORED_ELEMENTS", 0)
    make_family(name, tmp_path)
    tokens = [int(token) for token in TOKENS][:WINDOW]
    generator = np.random.default_rng(3)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    logits = model(torch.tensor([tokens])).logits[0]
    direction = generator.standard_normal(tuple(logits.shape)).astype(np.float32)
    (logits * torch.tensor(direction)).sum().backward()
    expected = {key: each.grad.numpy() for key, each in model.named_parameters() if each.grad is not None}

    # A longer context would change this family's rotations.
    found = gradients_of(tmp_path, tokens, direction, len(tokens) if name == "llama_dynamic" else WINDOW)
    assert found
    # Biases of keys change no distribution of attention, so their gradients are 0 but for rounding.
    largest = max(float(np.abs(each).max()) for each in expected.values())
    buffers = {key for key, _ in model.named_buffers()}
    for key, gradient in found.items():
        if key in buffers:
            continue
        scale = max(float(np.abs(expected[key]).max()), 1e-4 * largest)
        assert np.abs(gradient - expected[key]).max() < 2e-3 * scale, key


def gradients_of(folder: Path, tokens: list[int], direction: Array, window: int) -> dict[str, Array]:
    """The gradients by the checkpoint's tensors."""
    checkpoint = load(str(folder))
    graph = by_model_type(checkpoint.spec.model_type).forward(checkpoint.spec, window, window)
    headless = without_head(graph)

    def read(parameter: Parameter) -> Array:
        return read_rows(checkpoint, parameter, 0, parameter.rows)

    visitor = Gradients()
    whole = tape.Tape(graph, headless.rows, *window_inputs([tokens], window), read)
    rows = whole.forward()
    head = headless.head_of(read)
    whole.backward(
        head_backward(headless, rows, head, lambda part, start: direction[start : start + len(part)], visitor), visitor
    )
    found: dict[str, Array] = {}
    for name, gradient in visitor.found.items():
        first = 0
        for source in graph.parameters[name].sources:
            length = source.stop - source.start
            tensor = checkpoint.tensors[source.tensor]
            whole_tensor = found.setdefault(source.tensor, np.zeros(tensor.shape, np.float32))
            rows_read = np.arange(source.start, source.stop)
            if source.pairs is not None:
                rows_read = source.pairs.stored_rows(source.start, source.stop)
            whole_tensor[rows_read] += np.float32(source.factor) * gradient[first : first + length].reshape(
                length, *tensor.shape[1:]
            )
            first += length
    return found


def test_an_op_without_a_gradient_is_named() -> None:
    graph = Graph(nodes=[Node("fake_quantize", {"x": "a"}, {"y": "b"}, {"scale": 1.0})])
    with pytest.raises(UnsupportedModel, match=r"fake_quantize.*leave out --quality best"):
        tape.require_gradients(graph, "b")
