"""split_large: the parts compute the results of the complete matrix, each of their planes fits, and each row occurs
once.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from run_plan import CONTEXT, PAGE_SIZE, errors, random_batches, random_tensors, run_graph, run_plan, specs
from tolerances import F32

from nearfar.compiler import quant
from nearfar.compiler.arch.decoder import forward
from nearfar.compiler.ir.graph import Graph
from nearfar.compiler.ir.plan import make_plan
from nearfar.compiler.ir.spec import ModelSpec, RopeSpec
from nearfar.compiler.passes import run_passes
from nearfar.compiler.quant import Quantization

quantizations = st.sampled_from(quant.NAMES).map(quant.by_name)


def smallest_limit(graph: Graph, quantization: Quantization) -> int:
    """The bytes of two gate rows and the two up rows beside them, in the widest plane."""
    columns = [parameter.columns for parameter in graph.parameters.values() if parameter.columns is not None]
    return 4 * max(plane.row_bytes for each in columns for plane in quantization.planes(each))


@settings(max_examples=40, derandomize=True)
@given(spec=specs(), quantization=quantizations, factor=st.integers(1, 4), seed=st.integers(0, 1000))
def test_split_weights_compute_the_same_as_unsplit_ones(
    spec: ModelSpec, quantization: Quantization, factor: int, seed: int
) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    tensors, batches = random_tensors(plain, seed), random_batches(spec.vocab_size, seed)
    split = run_passes(plain, quantization, factor * smallest_limit(plain, quantization))
    found = run_plan(make_plan(split), split, tensors, batches)
    assert max(errors(found, run_graph(plain, tensors, batches)).values()) < F32


@settings(max_examples=40, derandomize=True)
@given(spec=specs(), quantization=quantizations, factor=st.integers(1, 4))
def test_every_plane_of_a_split_weight_fits_the_limit(spec: ModelSpec, quantization: Quantization, factor: int) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    limit = factor * smallest_limit(plain, quantization)
    split = run_passes(plain, quantization, limit)
    assert len(split.nodes) > len(run_passes(plain, quantization, 128 << 20).nodes)
    for parameter in split.parameters.values():
        if parameter.columns is not None:
            assert all(parameter.rows * plane.row_bytes <= limit for plane in quantization.planes(parameter.columns)), (
                parameter.name
            )


@settings(max_examples=20, derandomize=True)
@given(spec=specs(), factor=st.integers(1, 4))
def test_parts_hold_every_row_of_the_matrix_once_and_start_at_even_rows(spec: ModelSpec, factor: int) -> None:
    plain = forward(spec, PAGE_SIZE, CONTEXT)
    quantization = quant.by_name("q4f16")
    split = run_passes(plain, quantization, factor * smallest_limit(plain, quantization))
    head = "model.embed_tokens.weight" if spec.tie_word_embeddings else "lm_head.weight"
    parts = [each for name, each in split.parameters.items() if name.startswith(head)]
    rows = [row for part in parts for source in part.sources for row in range(source.start, source.stop)]
    assert rows == list(range(spec.vocab_size))
    assert all(source.start % 2 == 0 for part in parts for source in part.sources)


def test_a_weight_that_fits_exactly_is_not_split() -> None:
    quantization = quant.by_name("q4f16")
    spec = ModelSpec(
        model_type="llama", vocab_size=1000, hidden_size=64, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=64,
        intermediate_size=64,
        max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, rope=RopeSpec(theta=100.0), tie_word_embeddings=True,
    )  # fmt: skip
    graph = forward(spec, PAGE_SIZE, CONTEXT)
    embedding_bytes = spec.vocab_size * spec.hidden_size // 2
    whole = run_passes(graph, quantization, embedding_bytes)
    split = run_passes(graph, quantization, embedding_bytes - 1)
    assert [node.op for node in whole.nodes].count("embed") == 1
    assert [node.op for node in split.nodes].count("embed") == 2
