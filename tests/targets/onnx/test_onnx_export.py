"""Decoder graphs on ONNX Runtime against `ir/ops/` and transformers: every architecture, quantization, group size and
device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_cases import CONTEXT, Export, check_graph, reference_logits, relative_rms
from onnx_session import Session
from tiny_models import PLAIN_CHECKPOINTS, VOCAB_SIZE, make_checkpoint
from tolerances import KV_Q8, ONNX_F32, ONNX_INT8_KERNEL, ONNX_INT8_MODEL, relative_error

from nearfar.compiler import quant
from nearfar.compiler.ir.graph import Node
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.runtime.errors import BundleError, QuantizationError, RequestError, UnsupportedModel
from nearfar.targets.onnx import weights
from nearfar.targets.onnx.decoder import form_of

TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, VOCAB_SIZE, 23)]


@pytest.mark.parametrize("quantization", ["f32", "f16"])
@pytest.mark.parametrize("checkpoint", PLAIN_CHECKPOINTS)
def test_dense_graphs_equal_the_ops(
    onnx_checkpoints: Mapping[str, Path], export_onnx: Export, checkpoint: str, quantization: str
) -> None:
    session = Session(export_onnx(checkpoint, quantization))
    logits = np.concatenate([session.run([TOKENS[:9]]), *(session.run([[token]]) for token in TOKENS[9:])])
    expected = reference_logits(onnx_checkpoints[checkpoint], quant.by_name(quantization), TOKENS)
    assert relative_error(logits, expected[8:]) < ONNX_F32


@pytest.mark.parametrize("checkpoint", PLAIN_CHECKPOINTS)
def test_dense_graphs_equal_transformers(
    onnx_checkpoints: Mapping[str, Path], export_onnx: Export, checkpoint: str
) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(onnx_checkpoints[checkpoint], dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert relative_error(Session(export_onnx(checkpoint, "f32")).run([TOKENS])[0], expected[-1]) < ONNX_F32


@pytest.mark.parametrize(
    ("quantization", "group"),
    [("q4f16", 32), ("q4f16", 64), ("q4f16", 128), ("q4f32", 32), ("q8f16", 32), ("q8f16", 64), ("q8f16", 128)],
)
@pytest.mark.parametrize("checkpoint", PLAIN_CHECKPOINTS)
def test_quantized_graphs_equal_the_ops_as_far_as_8_bit_activations_allow(
    onnx_checkpoints: Mapping[str, Path], export_onnx: Export, checkpoint: str, quantization: str, group: int
) -> None:
    session = Session(export_onnx(checkpoint, quantization, group_size=group))
    logits = np.concatenate([session.run([TOKENS[:9]]), *(session.run([[token]]) for token in TOKENS[9:])])
    expected = reference_logits(onnx_checkpoints[checkpoint], quant.by_name(quantization, group), TOKENS)
    assert relative_rms(logits, expected[8:]) < ONNX_INT8_MODEL


@pytest.mark.parametrize(("quantization", "group"), [("q4f16", 32), ("q4f32", 64), ("q8f16", 128)])
def test_stored_matrices_are_those_of_our_quantization(
    onnx_checkpoints: Mapping[str, Path], export_onnx: Export, quantization: str, group: int
) -> None:
    """Every MatMulNBits of a graph, switched to float arithmetic, equals the product with our unpacked matrix."""
    folder = export_onnx("llama", quantization, group_size=group)
    x = np.random.default_rng(1).normal(size=(5, 72)).astype(np.float32)
    parts = [f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up")]
    expected = x @ np.concatenate([unpacked(onnx_checkpoints["llama"], quantization, group, part) for part in parts]).T
    exact, fast = (product(folder, "model.layers.1.mlp.gate_up_proj.weight", x, level) for level in (1, 4))
    assert relative_rms(exact, expected) < ONNX_F32
    assert ONNX_F32 < relative_rms(fast, expected) < ONNX_INT8_KERNEL


@pytest.mark.parametrize("device", ["cpu", "webgpu", "cuda", "coreml"])
@pytest.mark.parametrize("checkpoint", ["llama", "qwen3"])
def test_graphs_are_valid_onnx(export_onnx: Export, checkpoint: str, device: str) -> None:
    check_graph(export_onnx(checkpoint, "f32" if device == "coreml" else "q4f16", device=device) / "onnx/model.onnx")


@pytest.mark.parametrize("checkpoint", PLAIN_CHECKPOINTS)
def test_graphs_for_coreml_are_of_ops_that_it_has(
    onnx_checkpoints: Mapping[str, Path], export_onnx: Export, checkpoint: str
) -> None:
    import onnx

    folder = export_onnx(checkpoint, "f32", device="coreml")
    ops = {
        node.op_type
        for node in onnx.load(folder / "onnx/model.onnx").graph.node
        if node.name.startswith(("model.", "layers."))
    }
    # Only GroupQueryAttention is left to the CPU.
    assert ops == {"Add", "Div", "Gemm", "GroupQueryAttention", "Mul", "ReduceMean", "Reshape", "Sigmoid", "Sqrt"}
    expected = reference_logits(onnx_checkpoints[checkpoint], quant.by_name("f32"), TOKENS)
    assert relative_rms(Session(folder).run([TOKENS])[0], expected[-1]) < ONNX_F32


def test_graphs_for_cpus_have_one_product_for_projections_of_the_same_input(export_onnx: Export) -> None:
    import onnx

    for device, products in (("cpu", 4), ("webgpu", 7)):
        nodes = onnx.load(export_onnx("qwen3", "q4f16", device=device) / "onnx/model.onnx").graph.node
        # In each of two layers, and the head.
        assert sum(node.op_type == "MatMulNBits" for node in nodes) == 2 * products + 1, device


def test_graphs_for_gpus_leave_the_norm_of_heads_to_the_attention(export_onnx: Export) -> None:
    import onnx

    for device, inputs in (("cpu", 9), ("webgpu", 16), ("cuda", 16)):
        nodes = onnx.load(export_onnx("qwen3", "q4f16", device=device) / "onnx/model.onnx").graph.node
        assert [len(node.input) for node in nodes if node.op_type == "GroupQueryAttention"] == [inputs] * 2, device


def test_float16_graphs_equal_the_ops_as_far_as_float16_allows(
    onnx_checkpoints: Mapping[str, Path], export_onnx: Export
) -> None:
    """The CPU has kernels for float16 too, so it can replace a GPU if the attention does not normalize heads."""
    session = Session(export_onnx("qwen2", "q4f16", device="webgpu"))
    assert {each.type for name, each in session.inputs.items() if name.startswith("past")} == {"tensor(float16)"}
    logits = session.run([TOKENS])[0]
    expected = reference_logits(onnx_checkpoints["qwen2"], quant.by_name("q4f16"), TOKENS)[-1]
    assert logits.dtype == np.float32
    assert relative_rms(logits, expected) < ONNX_INT8_MODEL


def test_rows_of_a_padded_batch_have_lengths_of_their_own(export_onnx: Export) -> None:
    folder = export_onnx("qwen3", "f32")
    texts = [TOKENS[:7], TOKENS[7:10], TOKENS[10:11]]
    together = Session(folder)
    padded = [[*text, *[0] * (7 - len(text))] for text in texts]
    first = together.run(padded, [[1] * len(text) + [0] * (7 - len(text)) for text in texts])
    # The next token of each row follows its own last one, regardless of where the others end.
    then = together.run([[3], [4], [5]], [[1] * (len(text) + 1) + [0] * (7 - len(text)) for text in texts])
    for row, text in enumerate(texts):
        alone = Session(folder)
        assert relative_rms(first[row], alone.run([text])[0]) < ONNX_F32
        assert relative_rms(then[row], alone.run([[3 + row]])[0]) < ONNX_F32


def test_a_cache_as_long_as_the_context_is_written_in_place(export_onnx: Export) -> None:
    import onnxruntime

    session = Session(export_onnx("qwen3", "f32"))
    expected = [session.run([TOKENS[:5]]), session.run([TOKENS[5:6]])]
    cache = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 3, CONTEXT, 16), np.float32))
        for name in session.cache
    }
    for step, (start, stop) in enumerate(((0, 5), (5, 6))):
        binding = session.session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([TOKENS[start:stop]]))
        binding.bind_cpu_input("attention_mask", np.ones((1, stop), np.int64))
        for name, value in cache.items():
            binding.bind_ortvalue_input(name, value)
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        binding.bind_output("logits")  # The last position that is bound.
        session.session.run_with_iobinding(binding)
        assert relative_rms(binding.copy_outputs_to_cpu()[-1][:, 0], expected[step]) < ONNX_F32
    for name, value in cache.items():
        assert np.allclose(value.numpy()[:, :, :6], session.cache[name], atol=1e-5)
        assert not value.numpy()[:, :, 6:].any()


@pytest.mark.parametrize("checkpoint", PLAIN_CHECKPOINTS)
def test_a_cache_of_8_bit_integers_changes_logits_little(export_onnx: Export, checkpoint: str) -> None:
    plain, small = (Session(export_onnx(checkpoint, "f32", kv=kv)) for kv in ("activation", "q8"))
    assert {each.type for name, each in small.inputs.items() if name.startswith("past")} == {"tensor(int8)"}
    for chunk in (TOKENS[:15], TOKENS[15:16], TOKENS[16:17]):
        assert 0 < relative_rms(small.run([chunk]), plain.run([chunk])) < KV_Q8


def test_a_tied_head_shares_the_embedding(export_onnx: Export) -> None:
    import onnx

    graph = onnx.load(export_onnx("qwen3", "q4f16") / "onnx/model.onnx").graph
    gather = next(node for node in graph.node if node.op_type == "GatherBlockQuantized")
    head = next(node for node in graph.node if node.output[0] == "logits_rows")
    assert gather.input[0] == head.input[1]


def test_large_weights_lie_in_files_beside_the_graph(
    onnx_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export_onnx: Export
) -> None:
    monkeypatch.setattr(weights, "EXTERNAL_BYTES", 256)
    monkeypatch.setattr(weights, "FILE_BYTES", 30_000)
    folder = tmp_path / "bundle"
    bundle = export_model(
        str(onnx_checkpoints["qwen3"]),
        folder,
        CompileOptions(target="onnx", quantization="q4f16", group_size=32, context=CONTEXT),
    )
    data = sorted(path.name for path in (folder / "onnx").glob("*_data*"))
    assert data[:2] == ["model.onnx_data", "model.onnx_data_1"]
    assert json.loads((folder / "config.json").read_text())["transformers.js_config"][
        "use_external_data_format"
    ] == len(data)
    assert {f"onnx/{name}" for name in data} < {entry.file for entry in bundle.manifest.files}
    inline = Session(export_onnx("qwen3", "q4f16", group_size=32))
    assert np.array_equal(Session(folder).run([TOKENS]), inline.run([TOKENS]))
    check_graph(folder / "onnx/model.onnx")

    from nearfar.compiler.bundle.folder import open_any

    (folder / "onnx" / data[0]).unlink()
    with pytest.raises(BundleError, match="is missing"):
        open_any(folder)


def test_the_demo_model_answers_equally_in_every_quantization_on_numpy_and_onnx(tmp_path: Path) -> None:
    from nearfar.compiler.demo import CHECKPOINT

    prompt = [0, 1, 429, 347, 225, 23, 520, 225, 24, 35, 3, 2]
    for name in ("f32", "q4f16", "q8f16"):
        folder = tmp_path / name
        compile_any(str(CHECKPOINT), folder, CompileOptions(target="onnx", quantization=name, context=CONTEXT))
        session = Session(folder)
        tokens = [int(session.run([prompt])[0].argmax())]
        while tokens[-1] != 3:
            tokens.append(int(session.run([[tokens[-1]]])[0].argmax()))
        expected = reference_logits(CHECKPOINT, quant.by_name(name), [*prompt, *tokens[:-1]])[len(prompt) - 1 :].argmax(
            axis=1
        )
        assert tokens == expected.tolist() == [23, 308, 225, 24, 279, 225, 27, 3]


def test_models_and_options_that_kernels_do_not_support_are_refused(
    onnx_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    make_checkpoint("qwen3", tmp_path / "heads_of_20", head_dim=20, num_hidden_layers=1)
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (RequestError, "heads have 20 elements", {"model": str(tmp_path / "heads_of_20"), "quantization": "q4f16"}),
        (RequestError, "--device qnn", {"quantization": "f32", "device": "qnn"}),
        (RequestError, "float16 activations do not run on cpu", {"quantization": "f16", "activations": ("float16",)}),
        (RequestError, "--kv q8", {"quantization": "q4f16", "device": "webgpu", "kv": "q8"}),
        (RequestError, "--kv q4", {"quantization": "q4f16", "kv": "q4"}),
        (RequestError, "--kv fp8", {"quantization": "q4f16", "kv": "fp8"}),
        (QuantizationError, "use f16 or f32", {"quantization": "q4f16", "device": "coreml"}),
    ]
    for error, message, options in cases:
        model = options.pop("model", str(onnx_checkpoints["qwen3"]))
        with pytest.raises(error, match=message):
            export_model(model, tmp_path / "refused", CompileOptions(target="onnx", **options))
        assert [path.name for path in tmp_path.iterdir()] == ["heads_of_20"]


@pytest.mark.parametrize(
    ("node", "found"),
    [
        (Node("convolve", {}, {"y": "y"}), "convolve"),
        (Node("attention", {}, {"y": "y"}, {"causal": False}), "attention with causal False"),
        (Node("linear", {"x": "x", "residual": "r"}, {"y": "y"}, {"dtype": "float32"}), "linear with input 'residual'"),
        (Node("embed", {}, {"y": "y"}, {"scale": 2.0, "first_row": 8}), "embed with first_row 8"),
    ],
)
def test_ops_inputs_and_attributes_without_a_form_are_refused_by_name(node: Node, found: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"the model has {found}, which has no form"):
        form_of(node)


def unpacked(checkpoint: Path, quantization: str, group: int, tensor: str) -> np.ndarray[Any, Any]:
    from nearfar.compiler.formats import load

    found = load(str(checkpoint)).tensors[tensor]
    rows = found.rows(0, found.shape[0])
    fmt = quant.by_name(quantization, group)
    return fmt.unpack(fmt.pack(rows), rows.shape[1])


def product(folder: Path, tensor: str, x: np.ndarray[Any, Any], accuracy_level: int) -> np.ndarray[Any, Any]:
    """x times a matrix of a graph, by the node that the graph has for it."""
    import onnx
    import onnxruntime

    model = onnx.load(folder / "onnx/model.onnx")
    node = next(node for node in model.graph.node if f"{tensor}.q" in node.input)
    node.attribute.remove(next(attribute for attribute in node.attribute if attribute.name == "accuracy_level"))
    node.attribute.append(onnx.helper.make_attribute("accuracy_level", accuracy_level))
    node.input[0], node.output[0] = "x", "y"
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", None]) for name in ("x", "y")]
    held = [each for each in model.graph.initializer if each.name in node.input]
    single = onnx.helper.make_graph([node], "single", values[:1], values[1:], held)
    made = onnx.helper.make_model(single, opset_imports=model.opset_import, ir_version=model.ir_version)
    y: np.ndarray[Any, Any] = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
    return y
