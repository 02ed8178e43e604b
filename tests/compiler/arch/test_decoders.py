"""Each family's graph against transformers: in one piece, in chunks, beside another sequence, after preemption, and
after the passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from decoder_families import FAMILIES, HYBRIDS, PLAIN_FAMILIES, TOKENS, make_family
from run_plan import NUM_PAGES, PAGE_SIZE, run_graph
from safetensors.numpy import load_file, save_file
from tolerances import relative_error

from nearfar.compiler import quant
from nearfar.compiler.arch import by_model_type
from nearfar.compiler.formats import load
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.ops import Array
from nearfar.compiler.passes import run_passes
from nearfar.compiler.pipeline.weights import check_tensors
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

LIMIT = 5e-5
PAGES = [int(page) for page in np.random.default_rng(0).permutation(NUM_PAGES)]
OTHER = [token // 2 for token in TOKENS[:30]]


@pytest.mark.parametrize("name", [*FAMILIES, *HYBRIDS])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    expected = make_family(name, tmp_path)
    graph, tensors = opened(tmp_path, context=len(TOKENS))
    fused = run_passes(graph, quant.by_name("f32"), 128 << 20)
    for each in (graph, fused):
        for chunk in (len(TOKENS), 7, 1) if each is graph else (7,):
            assert relative_error(in_chunks(each, tensors, chunk), expected) < LIMIT
    alone = in_chunks(graph, tensors, len(TOKENS), beside=False)
    assert relative_error(alone, expected) < LIMIT
    assert relative_error(after_preemption(graph, tensors), expected[20:]) < LIMIT


# The last two of each layer are those of the feed-forward.
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("lfm2", ["linear", "causal_conv", *["linear"] * 3]),
        ("qwen3_5_text", ["linear", "convolved_delta", *["linear"] * 3]),
        ("granitemoehybrid", ["linear", "causal_conv", "ssm_scan", *["linear"] * 3]),
    ],
)
def test_a_layer_with_states_has_five_steps_or_six(name: str, steps: list[str], tmp_path: Path) -> None:
    make_family(name, tmp_path)
    graph, _ = opened(tmp_path, context=len(TOKENS))
    fused = run_passes(graph, quant.by_name("f32"), 128 << 20)
    assert [node.op for node in fused.nodes][1 : len(steps) + 1] == steps


@pytest.mark.parametrize("name", PLAIN_FAMILIES)
def test_logits_of_families_without_blocks_of_their_own_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    expected = make_family(name, tmp_path)
    assert load(str(tmp_path)).spec.model_type == name
    graph, tensors = opened(tmp_path, context=len(TOKENS))
    assert relative_error(in_chunks(graph, tensors, 11), expected) < LIMIT


def test_the_first_release_of_gpt_2_has_names_without_a_prefix_and_masks(tmp_path: Path) -> None:
    expected = make_family("gpt2", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old["h.0.attn.bias"] = np.zeros((1, 1, 4, 4), np.float32)
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    graph, arrays = opened(tmp_path, context=len(TOKENS))
    assert relative_error(in_chunks(graph, arrays, 11), expected) < LIMIT


# The others compute the head in the same way.
@pytest.mark.parametrize("name", ["cohere2", "gemma3_text", "gemma4_text", "llama_yarn"])
def test_a_head_of_its_own_or_the_embeddings_is_used_as_in_transformers(name: str, tmp_path: Path) -> None:
    for tied in (True, False):
        expected = make_family(name, tmp_path / str(tied), tie_word_embeddings=tied)
        graph, tensors = opened(tmp_path / str(tied), context=len(TOKENS))
        assert ("lm_head.weight" in graph.parameters) != tied
        assert relative_error(in_chunks(graph, tensors, 9), expected) < LIMIT


def test_experts_larger_than_a_binding_are_split_into_parts_of_all_experts(tmp_path: Path) -> None:
    expected = make_family("gpt_oss", tmp_path)
    graph, tensors = opened(tmp_path, context=len(TOKENS))
    split = run_passes(graph, quant.by_name("f32"), 64 << 10)
    parts = [node for node in split.nodes if node.op == "expert_linear" and "into" in node.inputs]
    assert parts
    for node in parts:
        rows = split.parameters[node.inputs["weight"]].rows
        assert rows % 5 == 0
        assert rows == split.parameters[node.inputs["bias"]].rows
    assert relative_error(in_chunks(split, tensors, 7), expected) < LIMIT


def test_queries_of_ministral_3_beyond_the_original_length_are_those_of_transformers(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 13}
    expected = make_family("ministral3", tmp_path, rope_parameters={**yarn, "llama_4_scaling_beta": 0.8})
    graph, tensors = opened(tmp_path, context=len(TOKENS))
    fused = run_passes(graph, quant.by_name("f32"), 128 << 20)
    assert "rope" not in {node.op for node in fused.nodes}
    for each in (graph, fused):
        assert relative_error(in_chunks(each, tensors, 7), expected) < LIMIT
    # Within the original length, no query is scaled.
    within, _ = opened(tmp_path, context=13)
    assert not any("position_scale" in node.attrs for node in within.nodes)


def test_upper_layers_of_gemma_4_compute_only_sampled_rows(tmp_path: Path) -> None:
    expected = make_family("gemma4_text", tmp_path)
    graph, tensors = opened(tmp_path, context=len(TOKENS))
    upper = [node for node in graph.nodes if any(name.startswith("model.layers.4.") for name in node.inputs.values())]
    assert upper
    assert all(graph.shape_of(node.outputs["y"])[0] == "R" for node in upper)
    # Some rows of both sequences, and then a chunk without a sampled row of the first sequence.
    rows = {0: [0, 8, 12], 13: [], 26: [1, 14]}
    batches = []
    for start, stop in ((0, 13), (13, 26), (26, 41)):
        used = -(-stop // PAGE_SIZE)
        chunks = [
            Chunk(TOKENS[start:stop], start, PAGES[11 : 11 + used], [4, 5] if start == 13 else ()),
            Chunk(TOKENS[start:stop], start, PAGES[:used], rows[start], slot=1),
        ]
        batches.append(make_batch(chunks, PAGE_SIZE))
    for each in (graph, run_passes(graph, quant.by_name("f32"), 128 << 20)):
        outputs = run_graph(each, tensors, batches).outputs
        found = np.concatenate([output["logits"] for output in outputs])
        assert relative_error(found, expected[[0, 8, 12, 17, 18, 27, 40]]) < LIMIT


def test_a_chunk_without_a_sampled_row_skips_the_upper_layers_and_fills_the_pages(tmp_path: Path) -> None:
    expected = make_family("gemma4_text", tmp_path)
    graph, tensors = opened(tmp_path, context=len(TOKENS))
    batches = [
        make_batch([piece(TOKENS, start, 20, PAGES[:11], sampled=start == 40)], PAGE_SIZE) for start in (0, 20, 40)
    ]
    outputs = run_graph(graph, tensors, batches).outputs
    assert [len(output["logits"]) for output in outputs] == [0, 0, 1]
    assert relative_error(outputs[-1]["logits"], expected[40:]) < LIMIT


def test_a_missing_table_of_the_second_embedding_is_an_error_that_names_it(tmp_path: Path) -> None:
    make_family("gemma4_text", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.embed_tokens_per_layer.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"tensor model\.embed_tokens_per_layer\.weight is missing"):
        opened(tmp_path, context=8)


def test_weights_of_a_convolution_in_another_order_are_refused(tmp_path: Path) -> None:
    make_family("lfm2", tmp_path)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.conv.conv.weight"
    tensors[name] = np.ascontiguousarray(tensors[name].transpose(2, 1, 0))
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"conv\.weight has shape \[3, 1, 72\]"):
        opened(tmp_path, context=8)


def test_layers_that_compute_only_sampled_rows_do_not_support_adapters(tmp_path: Path) -> None:
    make_family("gemma4_text", tmp_path)
    graph, _ = opened(tmp_path, context=len(TOKENS))
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.4.*only sampled rows"):
        run_passes(graph, quant.by_name("f32"), 128 << 20, lora_rank=4)


def opened(folder: Path, context: int) -> tuple[Graph, dict[str, Array]]:
    checkpoint = load(str(folder))
    graph = by_model_type(checkpoint.spec.model_type).forward(checkpoint.spec, PAGE_SIZE, context)
    check_tensors(checkpoint, graph.parameters)
    return graph, {name: tensor.rows(0, tensor.shape[0]) for name, tensor in checkpoint.tensors.items()}


def in_chunks(graph: Graph, tensors: Mapping[str, Array], chunk: int, *, beside: bool = True) -> Array:
    """The logits of all TOKENS, computed in chunks, ``beside`` another sequence that is shorter."""
    batches = []
    for start in range(0, len(TOKENS), chunk):
        parts = [piece(TOKENS, start, chunk, PAGES[:11], sampled=True)]
        if beside and start < len(OTHER):
            parts.append(piece(OTHER, start, chunk, PAGES[11:], sampled=False, slot=1))
        batches.append(make_batch(parts, PAGE_SIZE))
    return np.concatenate([outputs["logits"] for outputs in run_graph(graph, tensors, batches).outputs])


def after_preemption(graph: Graph, tensors: Mapping[str, Array]) -> Array:
    """The logits behind 20 TOKENS, which were computed in pages that another sequence has used since then, and again in
    others.
    """
    batches = [
        make_batch([piece(TOKENS, 0, 20, PAGES[:5], sampled=True)], PAGE_SIZE),
        make_batch([piece(OTHER, 0, len(OTHER), PAGES[:8], sampled=True, slot=1)], PAGE_SIZE),
        make_batch([piece(TOKENS, 0, 20, PAGES[8:13], sampled=True)], PAGE_SIZE),
        make_batch([piece(TOKENS, 20, 21, PAGES[8:19], sampled=True)], PAGE_SIZE),
    ]
    logits: Array = run_graph(graph, tensors, batches).outputs[-1]["logits"]
    return logits


def piece(
    tokens: Sequence[int], start: int, chunk: int, pages: Sequence[int], *, sampled: bool, slot: int = 0
) -> Chunk:
    part = tokens[start : start + chunk]
    used = pages[: -(-(start + len(part)) // PAGE_SIZE)]
    return Chunk(part, start, used, range(len(part)) if sampled else (), slot=slot, state=(slot, slot))
