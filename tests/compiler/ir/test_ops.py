"""The ops against their definitions as plain loops in float64, and against rules that hold for any input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import F32, relative_error

from nearfar.compiler.ir import e4m3
from nearfar.compiler.ir.kv_format import KV_FORMATS
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.ops.kv_pages import dequantize_rows, quantize_rows, rotated
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.ir.sampling import BIAS, COUNTS, GREEDY, MASK, MASKED, Settings

GATED: dict[str, Any] = {"store": [{"op": "gate_halves"}]}


def run(op: str, inputs: dict[str, Array], **attrs: object) -> Array:
    result = OPS[op].run(inputs, attrs)
    assert result is not None
    return result


def random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# --- shape rules ---


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "expected"),
    [
        ("embed", {"table": (509, 72), "token_ids": ("S",), "sampled": ("N",)}, {}, (("S", 72), "float32")),
        ("take_rows", {"x": ("S", 72), "rows": ("R",)}, {}, (("R", 72), "float32")),
        ("slice_columns", {"x": ("S", 72)}, {"start": 8, "stop": 20, "dtype": "activation"}, (("S", 12), "activation")),
        ("linear", {"x": ("S", 72), "weight": (40, 72)}, {"dtype": "activation"}, (("S", 40), "activation")),
        (
            "linear",
            {"x": ("S", 7), "weight": (4, 7)},
            {"dtype": "float32", "offset": 4, "columns": 12},
            (("S", 12), "float32"),
        ),
        (
            "linear",
            {"x": ("S", 7), "weight": (4, 7), "bias": (4,)},
            {"dtype": "float32"},
            (("S", 4), "float32"),
        ),
        ("linear", {"x": ("S", 7), "weight": (8, 7)}, {"dtype": "float32", **GATED}, (("S", 4), "float32")),
        (
            "linear",
            {"x": ("S", 7), "weight": (8, 7)},
            {"dtype": "float32", **GATED, "columns": 16},
            (("S", 16), "float32"),
        ),
        ("rms_norm", {"x": ("S", 72), "weight": (24,)}, {"dtype": "activation"}, (("S", 72), "activation")),
        (
            "attention",
            {"q": ("S", 144), "kv": ("P", 2, 3, 16, 24), "positions": ("S",)},
            {},
            (("S", 144), "activation"),
        ),
        (
            "attention",
            {"qkv": ("S", 288), "kv": ("P", 2, 3, 16, 24), "slots": ("S",), "positions": ("S",)},
            {},
            (("S", 144), "activation"),
        ),
        ("adjust_logits", {"logits": ("R", 509)}, {}, (("A", 509), "float32")),
        ("sample", {"logits": ("R", 509)}, {}, (("R",), "int32")),
    ],
)
def test_a_shape_rule_gives_shape_and_dtype(
    op: str, shapes: dict[str, object], attrs: dict[str, object], expected: object
) -> None:
    assert OPS[op].results(shapes, attrs)[OPS[op].result or ""] == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        ("linear", {"x": ("S", 72), "weight": (40, 71)}),
        ("linear", {"x": ("S", 72), "weight": (40, 72), "bias": (39,)}),
        ("add", {"a": ("S", 72), "b": ("S", 71)}),
        ("rms_norm", {"x": ("S", 72), "weight": (24,), "bias": (72,)}),
        ("gate", {"gate": ("S", 72), "up": ("S", 71)}),
    ],
)
def test_shapes_that_disagree_are_refused(op: str, shapes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{op}: shapes disagree"):
        OPS[op].results(shapes, {"dtype": "float32"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attrs", "shapes"),
    [
        ({"store": [{"op": "add"}]}, {"store0_b": ("S", 41)}),
        ({"store": [{"op": "add"}]}, {"store0_b": ("R", 40)}),
        ({"store": [{"op": "add"}]}, {}),
        ({"store": [{"op": "gate", "start": 3}]}, {"store0_up": ("S", 42)}),
        ({"store": [{"op": "gate_halves"}], "columns": 40}, {"into": ("S", 20)}),
        ({"store": [{"op": "fake_quantize", "scale": 0.5}, {"op": "gate_halves"}]}, {}),
        ({"load": [{"op": "rms_norm", "eps": 1e-5}]}, {"load0_weight": (71,)}),
        ({"load": [{"op": "rms_norm", "eps": 1e-5, "row": 1}]}, {"load0_weight": (143,)}),
        ({"load": [{"op": "rms_norm", "eps": 1e-5}]}, {"load0_weight": (72,), "load0_bias": (71,)}),
        ({"load": [{"op": "gate_halves"}]}, {}),
    ],
)
def test_parts_whose_shapes_disagree_are_refused(attrs: dict[str, object], shapes: dict[str, object]) -> None:
    given = {"x": ("S", 72), "weight": (40, 72), **shapes}
    with pytest.raises(ValueError, match="shapes disagree"):
        OPS["linear"].results(given, {"dtype": "float32", **attrs})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "parts",
    [
        [{"op": "linear"}],
        [{"op": "gate", "start": 0}],
        [{"op": "scale", "keep": False}],
        [{"op": "rms_norm"}],
        [{"op": "rms_norm", "eps": 0}],
        [{"op": "rms_norm", "eps": 1e999}],
        [{"op": "rms_norm", "eps": 1e-5, "store": []}],
        [{"scale": 1}],
        ({"op": "add"},),
    ],
)
def test_parts_that_are_not_in_canonical_form_are_refused(parts: object) -> None:
    with pytest.raises(ValueError, match=r"linear: attribute 'load' is .*; it must be a list of parts"):
        OPS["linear"].canonical("linear", {"dtype": "float32", "load": parts})


# --- meanings ---


@settings(max_examples=30, derandomize=True)
@given(rows=st.integers(1, 30), first=st.integers(0, 30), seed=st.integers(0, 99))
def test_a_table_in_two_parts_embeds_like_one_table(rows: int, first: int, seed: int) -> None:
    table, token_ids = random(seed, rows + first, 5), np.random.default_rng(seed).integers(0, rows + first, 9)
    sampled = np.random.default_rng(seed).integers(0, rows + first, 3)
    # The last two tokens are the ones that slots 2 and 0 sampled.
    inputs = {"token_ids": np.array([*token_ids, -3, -1]), "sampled": sampled}
    part = run("embed", {"table": table[:first], **inputs}, first_row=0)
    whole = run("embed", {"table": table[first:], **inputs, "into": part}, first_row=first)
    np.testing.assert_array_equal(whole, table[[*token_ids, sampled[2], sampled[0]]])


@settings(max_examples=30, derandomize=True)
@given(
    rows=st.integers(1, 4), columns=st.integers(1, 20), outputs=st.integers(1, 20), cut=st.integers(0, 20),
    seed=st.integers(0, 99),
    roles=st.sets(st.sampled_from(["load0_weight", "bias", "store0_b"])),
)  # fmt: skip
def test_a_projection_is_norm_then_product_then_bias_then_residual_also_in_parts(
    rows: int, columns: int, outputs: int, cut: int, seed: int, roles: set[str]
) -> None:
    shapes = {"load0_weight": (columns,), "bias": (outputs,), "store0_b": (rows, outputs)}
    extras = {role: random(seed + 1 + i, *shapes[role]) for i, role in enumerate(sorted(roles))}
    attrs: dict[str, Any] = {"load": [{"op": "rms_norm", "eps": 1e-5}]} if "load0_weight" in extras else {}
    attrs |= {"store": [{"op": "add"}]} if "store0_b" in extras else {}
    x, weight = random(seed, rows, columns), random(seed + 9, outputs, columns)
    normed = run("rms_norm", {"x": x, "weight": extras["load0_weight"]}, eps=1e-5) if "load0_weight" in extras else x
    expected = (
        normed.astype(np.float64) @ weight.T.astype(np.float64) + extras.get("bias", 0) + extras.get("store0_b", 0)
    )
    assert relative_error(run("linear", {"x": x, "weight": weight, **extras}, **attrs), expected) < F32
    cut = min(cut, outputs)
    first = run("linear", {"x": x, "weight": weight[:cut], **extras}, **attrs, offset=0, columns=outputs)
    rest = {"x": x, "weight": weight[cut:], "into": first, **extras}
    assert relative_error(run("linear", rest, **attrs, offset=cut, columns=outputs), expected) < F32


def test_a_gated_projection_is_silu_of_the_upper_rows_times_the_lower_ones() -> None:
    x, weight, bias = random(1, 3, 7), random(2, 10, 7), random(3, 10)
    both = x.astype(np.float64) @ weight.T + bias
    expected = both[:, :5] / (1 + np.exp(-both[:, :5])) * both[:, 5:]
    assert relative_error(run("linear", {"x": x, "weight": weight, "bias": bias}, **GATED), expected) < F32


def test_silu_of_extreme_numbers_is_zero_or_the_number_without_a_warning() -> None:
    gate = np.array([[-1e4, -100, 0, 100, 1e4]], np.float32)
    found = run("gate", {"gate": gate, "up": np.ones_like(gate)})
    np.testing.assert_allclose(found, [[0, 0, 0, 100, 1e4]], atol=1e-30)


def test_a_gate_with_a_limit_is_that_of_gpt_oss() -> None:
    """Its formula: OpenAI 2025, gpt-oss, `swiglu`."""
    x = 9 * random(4, 5, 12).astype(np.float64)
    gate, up = np.minimum(x[:, :6], 7), np.clip(x[:, 6:], -7, 7)
    expected = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
    found = run("gate_halves", {"x": x.astype(np.float32)}, limit=7.0, slope=1.702, shift=1.0)
    assert relative_error(found, expected) < F32


def test_rows_are_scaled_behind_a_projection_one_by_one() -> None:
    x, weight, factors = random(1, 3, 7), random(2, 5, 7), random(3, 3)
    store = {"store": [{"op": "scale_rows"}]}
    found = run("linear", {"x": x, "weight": weight, "store0_factors": factors}, **store)
    assert relative_error(found, x.astype(np.float64) @ weight.T * factors[:, None]) < F32


def test_an_rms_norm_of_heads_norms_each_head_alone() -> None:
    x, weight = random(1, 4, 3 * 6), random(2, 6)
    for head in range(3):
        columns = slice(6 * head, 6 * head + 6)
        alone = run("rms_norm", {"x": x[:, columns], "weight": weight}, eps=1e-6)
        np.testing.assert_array_equal(run("rms_norm", {"x": x, "weight": weight}, eps=1e-6)[:, columns], alone)


@pytest.mark.parametrize("bias", [False, True])
def test_a_centered_norm_with_a_bias_is_layer_norm(bias: bool) -> None:
    import torch

    x, weight, shift = 5 + random(1, 4, 12), random(2, 12), random(3, 12)
    inputs = {"x": x, "weight": weight, **({"bias": shift} if bias else {})}
    x_, weight_, shift_ = (torch.from_numpy(each) for each in (x, weight, shift))
    expected = torch.nn.functional.layer_norm(x_, (12,), weight_, shift_ if bias else None)
    assert relative_error(run("rms_norm", inputs, eps=1e-5, centered=True), expected.numpy()) < F32


def test_an_rms_norm_of_zeros_is_zero() -> None:
    assert not run("rms_norm", {"x": np.zeros((2, 8), np.float32), "weight": random(1, 8)}, eps=1e-6).any()


@settings(max_examples=30, derandomize=True)
@given(first=st.integers(0, 40), distance=st.integers(0, 20), shift=st.integers(0, 40), seed=st.integers(0, 99))
def test_products_of_rotated_heads_depend_on_their_distance_alone(
    first: int, distance: int, shift: int, seed: int
) -> None:
    table = rope_table([1.0, 0.3, 0.01], 101)
    q, k = random(seed, 1, 6), random(seed + 1, 1, 6)

    def product(q_position: int, k_position: int) -> float:
        both = ((q, q_position), (k, k_position))
        rotated = [run("rope", {"x": x, "positions": np.array([p]), "table": table}, head_dim=6) for x, p in both]
        return float((rotated[0] * rotated[1]).sum())

    assert math.isclose(
        product(first + distance, first), product(first + shift + distance, first + shift), rel_tol=1e-4, abs_tol=1e-4
    )


def test_position_zero_is_not_rotated() -> None:
    x = random(1, 2, 12)
    np.testing.assert_array_equal(
        run("rope", {"x": x, "positions": np.zeros(2, int), "table": rope_table([1.0, 0.5], 3)}, head_dim=4), x
    )


def test_attention_over_permuted_pages_is_softmax_in_a_plain_loop() -> None:
    heads, kv_heads, head_dim, page = 4, 2, 6, 4
    lengths, new_lengths = [9, 4, 1], [3, 4, 1]
    page_ids = np.array([5, 0, 3, 1, 6])
    kv = random(1, 8, 2, kv_heads, page, head_dim)
    q = random(2, sum(new_lengths), heads * head_dim)
    positions = np.concatenate(
        [np.arange(length - new, length) for length, new in zip(lengths, new_lengths, strict=True)]
    )
    indptr = np.array([0, 3, 4, 5])
    found = run(
        "attention",
        {
            "q": q,
            "kv": kv,
            "positions": positions,
            "seq_starts": np.cumsum([0, *new_lengths]),
            "page_indptr": indptr,
            "page_ids": page_ids,
        },
    )
    expected = np.zeros((sum(new_lengths), heads, head_dim))
    sequence_of = np.repeat(np.arange(3), new_lengths)
    for row, (position, sequence) in enumerate(zip(positions, sequence_of, strict=True)):
        for head in range(heads):
            cells = [(page_ids[indptr[sequence] + t // page], head // 2, t % page) for t in range(position + 1)]
            query = q[row].reshape(heads, head_dim)[head].astype(np.float64)
            weights = [math.exp(query @ kv[p, 0, h, offset] / math.sqrt(head_dim)) for p, h, offset in cells]
            values = [kv[p, 1, h, offset] for p, h, offset in cells]
            expected[row, head] = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert relative_error(found, expected.reshape(found.shape)) < F32


def test_quantized_rows_are_codes_from_the_lowest_byte_on_and_a_scale() -> None:
    # Scale -2: 254 is code -127; 3 and 5 lie between two codes and take the even one; zeros have scale -0.
    rows = np.array([[254, -254, 3, 5], [0, 0, 0, 0]], np.float32)
    words = quantize_rows(rows, KV_FORMATS["q8"])
    assert [[f"{word:08x}" for word in row] for row in words] == [["fefe7f81", "c0000000"], ["00000000", "80000000"]]
    np.testing.assert_array_equal(dequantize_rows(words, KV_FORMATS["q8"]), [[254, -254, 4, 4], [0, 0, 0, 0]])


def test_a_word_of_4_bit_codes_has_two_vectors_and_the_largest_element_is_exact() -> None:
    # Scale -2: 16 is code -8, which is stored as 0; -16 is limited to code 7; 3 and 5 take the even code.
    rows = np.array([[16, -16, 3, 5, 0, 2, -2, 4], [0] * 8], np.float32)
    words = quantize_rows(rows, KV_FORMATS["q4"])
    assert [[f"{word:08x}" for word in row] for row in words] == [["66967f80", "c0000000"], ["88888888", "80000000"]]
    np.testing.assert_array_equal(
        dequantize_rows(words, KV_FORMATS["q4"]), [[16, -14, 4, 4, 0, 2, -2, 4], [0, 0, 0, 0, 0, 0, 0, 0]]
    )


def test_a_row_of_floats_has_the_largest_one_at_its_largest_element() -> None:
    # Scale -0.5: 224 is -448, whose code is 0xfe; 1 is -2; 17 is -34, between 32 and 36, and takes the even code.
    rows = np.array([[224, -224, 1, 17], [0, 0, 0, 0]], np.float32)
    words = quantize_rows(rows, KV_FORMATS["fp8"])
    assert [[f"{word:08x}" for word in row] for row in words] == [["e0c07efe", "bf000000"], ["00000000", "80000000"]]
    np.testing.assert_array_equal(dequantize_rows(words, KV_FORMATS["fp8"]), [[224, -224, 1, 16], [0, 0, 0, 0]])


@pytest.mark.parametrize("size", [1e-3, 1e-2, 1, 400, 1e4])
def test_floats_of_8_bits_are_those_of_torch(size: float) -> None:
    import torch

    # Each number, the middle of each two, and others.
    steps = np.sort(e4m3.VALUES[np.isfinite(e4m3.VALUES)])
    numbers = np.concatenate([steps, (steps[1:] + steps[:-1]) / 2, random(0, 1000) * np.float32(size)])
    # Torch makes NaN of larger numbers, CUDA's instruction with .satfinite limits them.
    limited = torch.from_numpy(numbers).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(e4m3.encode(numbers), limited)


@given(st.integers(0, 1000), st.sampled_from([1e-20, 1, 1e4]), st.sampled_from(["q8", "q4"]))
def test_a_quantized_element_is_at_most_half_a_step_away_and_a_limited_one_a_step(
    seed: int, size: float, kv: str
) -> None:
    form, rows = KV_FORMATS[kv], random(seed, 5, 3, 8) * np.float32(size)
    error = np.abs(dequantize_rows(quantize_rows(rows, form), form) - rows)
    largest = np.abs(rows).max(axis=-1, keepdims=True)
    limited = np.abs(rows) > largest * (form.largest_code + 0.5) / form.steps
    assert (error <= largest / form.steps * np.where(limited, 1.001, 0.501)).all()


@pytest.mark.parametrize(("head_dim", "block"), [(24, 8), (64, 64), (80, 16)])
def test_a_rotation_multiplies_blocks_by_an_orthonormal_hadamard_matrix(head_dim: int, block: int) -> None:
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    rows = random(0, 5, head_dim)
    expected = (rows.reshape(5, -1, block) @ matrix / np.sqrt(block)).reshape(rows.shape)
    assert relative_error(rotated(rows), expected) < F32 / 100
    assert relative_error(rotated(rotated(rows)), rows) < F32 / 100


def sampling_inputs(logits: Array, slots: list[tuple[int, int]], settings: Settings = GREEDY) -> dict[str, Array]:
    """The inputs of `adjust_logits` and `sample` for logits (R, V) that are not yet adjusted, with four slots."""
    rows, columns = logits.shape
    return {
        "logits": logits,
        "adjusted": np.zeros((0, columns), np.float32),
        "settings": np.array([settings] * rows, np.float32).reshape(rows, len(settings)),
        "slots": np.array(slots, np.int32).reshape(rows, 2),
        "sampled": np.full(4, -9, np.int32),
        "counts": np.zeros((4, columns), np.int32),
        "bias": np.zeros((4, columns), np.float32),
        "mask": np.full((4, -(-columns // 32)), -1, np.int32),
        "logprobs": np.zeros(rows, np.float32),
    }


def test_greedy_chooses_the_first_of_equals_and_leaves_it_in_its_slot() -> None:
    x = np.array([[1, 3, 3, 2], [0, 0, 0, 0], [-9, -9, -1, -1]], np.float32)
    inputs = sampling_inputs(x, [(2, 0), (-1, 0), (0, COUNTS)])
    assert run("sample", inputs).tolist() == [1, 0, 2]
    assert inputs["sampled"].tolist() == [2, -9, 1, -9]
    assert np.argwhere(inputs["counts"]).tolist() == [[0, 2]]


def test_log_probabilities_are_those_of_the_raw_logits() -> None:
    x = random(1, 2, 7)
    inputs = sampling_inputs(x, [(0, 0), (1, 0)])
    inputs["adjusted"] = -x
    chosen = run("sample", inputs)
    assert chosen.tolist() == x.argmin(-1).tolist()
    expected = [
        math.log(math.exp(row[token]) / sum(math.exp(each) for each in row))
        for row, token in zip(x, chosen, strict=True)
    ]
    np.testing.assert_allclose(inputs["logprobs"], expected, rtol=1e-5)


def test_logits_that_are_not_finite_give_no_token() -> None:
    x = np.array([[1, np.nan, 3], [1, 2, 3], [1, np.inf, 3]], np.float32)
    inputs = sampling_inputs(x, [(0, COUNTS), (1, 0), (2, 0)])
    assert run("sample", inputs).tolist() == [-1, 2, -1]
    assert inputs["sampled"].tolist() == [-9, 2, -9, -9]
    assert not inputs["counts"].any()


def test_no_row_with_a_flag_gives_no_adjusted_logits() -> None:
    assert run("adjust_logits", sampling_inputs(random(1, 3, 5), [(0, 0)] * 3)).shape == (0, 5)


def test_rows_without_a_flag_are_copied_beside_rows_with_one() -> None:
    x = random(1, 3, 40)
    inputs = sampling_inputs(x, [(0, 0), (1, BIAS), (3, MASK)])
    inputs["bias"][1] = 2
    inputs["mask"][3] = [0, 1 << 3]
    adjusted = run("adjust_logits", inputs)
    np.testing.assert_array_equal(adjusted[0], x[0])
    np.testing.assert_array_equal(adjusted[1], x[1] + 2)
    assert np.flatnonzero(adjusted[2] != MASKED).tolist() == [35]
    assert adjusted[2, 35] == x[2, 35]


def test_the_likeliest_tokens_are_listed_best_first_and_equals_in_order() -> None:
    x = np.array([[1, 3, 3, 2, 0]], np.float32)
    inputs = {"logits": x, "ids": np.zeros((1, 4), np.int32), "logprobs": np.zeros((1, 4), np.float32)}
    OPS["top_logprobs"].run(inputs, {})
    assert inputs["ids"].tolist() == [[1, 2, 3, 0]]
    total = math.log(sum(math.exp(each) for each in x[0]))
    np.testing.assert_allclose(inputs["logprobs"], [[3 - total, 3 - total, 2 - total, 1 - total]], rtol=1e-5)


def test_no_rows_give_no_results() -> None:
    empty = np.zeros((0, 4), np.float32)
    inputs = {"x": empty, "weight": random(1, 3, 4), "load0_weight": random(2, 4)}
    assert run("linear", inputs, load=[{"op": "rms_norm", "eps": 1e-5}]).shape == (0, 3)
    assert run("sample", sampling_inputs(empty, [])).shape == (0,)
