"""The cases of every op but attention: widths of 1, 3 and one past a vector, each attribute, optional input and dtype,
in pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sampling_cases as shared
from cpu_attention_cases import attention_cases
from cpu_sequence_cases import image_cases, kept_cases, state_cases, text_cases
from cpu_steps import Batch, Inputs, StepCase
from kernel_harness import Run
from projection_parts import Parts, parts_of

from nearfar.compiler.ir.ops.elementwise import OPS as ELEMENTWISE
from nearfar.compiler.ir.ops.op import ACTIVATIONS
from nearfar.compiler.ir.sampling import Settings
from nearfar.compiler.ir.watermark import COLUMNS

EPS = 1e-6
ROWS = (1, 3, 19)
NUM_ADAPTERS = 3
# A projection: whether it gates, the quantization, (columns, outputs) of its weight, the dtypes of x and y, its
# optional inputs, its other options (of `projection_parts`, and its attributes), and the activation dtype.
PROJECTIONS: tuple[tuple[bool, str, int, int, str, str, tuple[str, ...], dict[str, Any], str], ...] = (
    (False, "q4f16", 72, 37, "float32", "float32", ("norm", "bias"), {}, "float32"),
    (False, "q4f32", 70, 20, "float32", "float32", ("norm", "bias", "residual", "into"), {"offset": 18,
    "columns": 47}, "float32"),
    (False, "f16", 96, 33, "activation", "activation", ("bias", "into"), {"offset": 0, "columns": 50}, "float16"),
    (False, "f32", 37, 61, "activation", "float32", ("residual", "norm"), {}, "float16"),
    (False, "q8f16", 130, 17, "float32", "activation", ("residual",), {}, "float16"),
    (False, "q4f16", 1, 1, "float32", "activation", (), {}, "float16"),
    (False, "q8f16", 3, 3, "activation", "activation", ("norm",), {}, "int8"),
    (True, "q8f16", 37, 32, "float32", "float32", ("bias",), {"activation": "gelu"}, "float32"),
    (True, "f16", 96, 70, "float32", "float32", ("norm", "into"), {"offset": 8, "columns": 50}, "float32"),
    (True, "q4f32", 64, 64, "activation", "float32", ("norm", "bias"), {"activation": "gelu_tanh"},
    "float16"),
    (True, "f32", 3, 34, "activation", "float32", ("bias", "into"), {"activation": "relu2", "columns": 20},
    "float16"),
    (False, "f32", 37, 45, "float32", "float32", ("bias", "residual"), {"y_activation": "gelu"}, "float32"),
    (False, "f32", 37, 21, "float32", "float32", ("bias",), {"y_activation": "xielu"}, "float32"),
    (False, "q2c", 97, 509, "float32", "float32", ("norm",), {}, "float32"),
    (False, "f32", 37, 46, "float32", "float32", ("residual",), {"cap": 2.0, "factor": True,
    "row_factors": True, "clip": 0.7}, "float32"),
    (True, "q8f16", 37, 38, "float32", "float32", ("bias",), {"limit": 0.7}, "float32"),
    (False, "q4c", 70, 45, "activation", "float32", ("residual",), {"x_step": 0.25, "y_step": 0.5}, "float16"),
    (False, "f32", 37, 20, "float32", "float32", ("bias",), {"x_step": 0.25, "clamps": True}, "float32"),
    (False, "q8c", 330, 33, "activation", "float32", ("residual",), {}, "float16"),
    (False, "q2c", 37, 20, "float32", "float32", ("bias",), {}, "int8"),
    (False, "q2g16b", 80, 37, "float32", "float32", ("norm",), {}, "float32"),
    (False, "q3g16", 112, 20, "float32", "float32", ("bias",), {}, "int8"),
    (False, "q3cz_f16", 330, 33, "activation", "float32", ("residual",), {}, "float16"),
    (False, "q4g32b", 200, 40, "float32", "float32", ("norm", "bias"), {}, "float32"),
    (False, "q4g32b_i8", 520, 40, "float32", "float32", ("norm",), {}, "float32"),
    (True, "q6g16_i8", 272, 34, "float32", "float32", ("bias",), {}, "int8"),
    (True, "q4g128z_f16", 300, 36, "activation", "float32", (), {}, "float16"),
    (False, "q5g32b", 70, 20, "float32", "float32", ("residual",), {}, "int8"),
    (True, "q6g16", 72, 34, "float32", "float32", ("bias",), {}, "float32"),
    (False, "q8g32z", 97, 33, "float32", "float32", (), {}, "float32"),
    (False, "q4f16", 70, 33, "activation", "float32", ("norm",), {"stream_eps": 1e-2,
    "stream_factor": True}, "float32"),
    (True, "q8f16", 37, 34, "float32", "float32", ("bias",), {"stream_eps": 1e-2,
    "stream_factor": True}, "float16"),
    (False, "q4f16", 72, 35, "float32", "float32", ("norm", "bias", "up"), {"activation": "gelu_tanh",
    "up_start": 11}, "float32"),
    (False, "q4f16", 70, 33, "activation", "activation", ("norm", "norm_bias", "bias"), {"centered": True,
    "keeps_norm": True}, "float16"),
    (True, "f32", 37, 34, "float32", "float32", ("norm", "norm_bias"), {"centered": True,
    "keeps_norm": True}, "float32"),
)  # fmt: skip
# Formats and options that PROJECTIONS has in other combinations; only `make test-all` runs them.
MORE_PROJECTIONS: tuple[tuple[bool, str, int, int, str, str, tuple[str, ...], dict[str, Any], str], ...] = (
    (True, "q4f16", 33, 66, "float32", "float32", (), {"activation": "none"}, "int8"),
    (False, "q8f16", 70, 33, "float32", "float32", ("bias",), {"y_activation": "tanh"}, "float32"),
    (True, "q4c", 200, 70, "float32", "float32", ("norm", "bias"), {}, "float32"),
    (False, "q2g64", 150, 18, "float32", "float32", (), {}, "float32"),
    (False, "q5g64", 150, 18, "float32", "float32", (), {}, "float32"),
    (False, "q6g16", 144, 45, "float32", "float32", ("norm",), {}, "int8"),
    (False, "q8g64b_f16", 130, 17, "float32", "float32", ("bias",), {}, "int8"),
    (True, "q8f16", 130, 32, "float32", "float32", ("norm",), {"centered": True}, "int8"),
)  # fmt: skip


def all_cases() -> Iterator[StepCase]:
    cases = (
        embed_cases, row_cases, projection_cases, expert_cases, lora_cases, rope_cases, attention_cases, text_cases,
        state_cases, kept_cases, image_cases,
    )  # fmt: skip
    yield from selected(case for each in cases for case in each())
    yield from sampling_cases()


def selected(cases: Iterable[StepCase]) -> Iterator[StepCase]:
    """`make test` runs every tenth case of a template at its levels, or at two more than the base level if it has all
    of them, and the others at the base level alone. All ops on elements have one template, of which one case suffices.
    """
    turns: Counter[str] = Counter()
    for case in cases:
        template, every = ("elementwise", 100) if case.op in ELEMENTWISE else (case.op, 10)
        turn = turns[template] % every
        turns[template] += not case.exhaustive
        usual = case.levels
        if not case.exhaustive and case.quantization != "q2c":
            usual = () if turn else ("avx512", "neon") if case.levels is None else case.levels
        yield replace(case, levels=usual)
        if usual != case.levels:
            yield replace(case, name=f"{case.name}_all_levels", exhaustive=True)


def on_rows(
    name: str, op: str, inputs: Inputs, attrs: dict[str, Any], activation: str = "float32", batch: str = "S"
) -> StepCase:
    return StepCase(name, op, inputs, attrs, [Batch({batch: rows}) for rows in ROWS], activation)


def embed_cases() -> Iterator[StepCase]:
    for quantization, rows, columns, attrs in (
        ("q4f32", 51, 37, {}),
        ("q8f16", 51, 1, {"scale": 6.0}),
        ("f16", 18, 96, {"first_row": 0}),
        ("f32", 51, 72, {}),
        ("q4f16", 17, 72, {"first_row": 20, "scale": 0.5}),
        ("q2c", 51, 133, {}),
        ("q4g64", 17, 150, {"first_row": 20}),
        ("q8c", 9, 37, {}),
        ("q2g16b", 17, 80, {}),
        ("q3g16", 17, 112, {}),
        ("q5g32b", 17, 70, {"scale": 3.0}),
        ("q6g16", 17, 144, {"first_row": 20}),
        ("q2g16b_i8", 17, 300, {}),
        ("q4g128z_f16", 17, 150, {}),
    ):
        split, first = "first_row" in attrs, int(attrs.get("first_row", 0))
        inputs: Inputs = {"table": ("matrix", rows, columns), "token_ids": ("int32", "S"), "sampled": ("int32", "N")}
        inputs |= {"into": ("float32", "S", columns)} if split else {}
        batches = []
        for size in ROWS:
            rng = np.random.default_rng(size)
            # Half of the ids are in other parts of a split table, before it and after it.
            token_ids = rng.integers(0, 2 * rows + first if split else rows, size)
            token_ids[0] = rows - 1 + first
            # Every third token refers to the token that a slot sampled last.
            token_ids[2::3] = -1 - rng.integers(0, 3, len(token_ids[2::3]))
            arrays = {
                "token_ids": token_ids.astype(np.int32),
                "sampled": rng.integers(first, rows + first, 3).astype(np.int32),
            }
            batches.append(Batch({"S": size, "N": 3}, arrays))
        name = f"embed_{quantization}_{columns}" + f"_from{first}" * split
        yield StepCase(name, "embed", inputs, attrs, batches, quantization=quantization)


def row_cases() -> Iterator[StepCase]:
    for columns in (1, 37):
        batches = [
            Batch(
                {"S": size + 4, "R": size},
                {"rows": np.random.default_rng(size).integers(0, size + 4, size).astype(np.int32)},
            )
            for size in ROWS
        ]
        yield StepCase(
            f"take_rows_{columns}", "take_rows", {"x": ("float32", "S", columns), "rows": ("int32", "R")}, {}, batches
        )
    for columns, start, stop, x, y in (
        (37, 3, 20, "float32", "activation"),
        (72, 0, 1, "activation", "float32"),
        (72, 16, 72, "activation", "activation"),
        (3, 1, 3, "float32", "float32"),
    ):
        attrs = {"start": start, "stop": stop, "dtype": y}
        yield on_rows(f"slice_columns_{columns}_{x}_{y}", "slice_columns", {"x": (x, "S", columns)}, attrs, "float16")
    for columns in (1, 3, 33):
        yield on_rows(f"add_{columns}", "add", {"a": ("float32", "S", columns), "b": ("float32", "S", columns)}, {})
    for columns, x, y in ((37, "float32", "activation"), (3, "activation", "float32")):
        attrs = {"scale": 0.25, "dtype": y}
        # Values far from ties, on both sides of the limits.
        rng = np.random.default_rng(columns)
        codes = rng.integers(-200, 200, (ROWS[-1], columns)) + rng.uniform(-0.4, 0.4, (ROWS[-1], columns))
        batches = [
            Batch({"S": size}, {"x": (codes[:size] / 4).astype("f2" if x != "float32" else "f4")}) for size in ROWS
        ]
        inputs: Inputs = {"x": (x, "S", columns)}
        yield StepCase(f"fake_quantize_{columns}", "fake_quantize", inputs, attrs, batches, "float16")
        yield on_rows(f"clip_{columns}", "clip", inputs, {"limit": 0.7, "dtype": y}, "float16")
    for turn, (activation, columns) in enumerate(zip(ACTIVATIONS, (1, 3, 16, 17, 33, 7, 5, 12, 9), strict=True)):
        attrs = {"activation": activation}
        inputs = {"gate": ("float32", "S", columns), "up": ("float32", "S", columns)}
        of_activation = (
            gate_case(f"gate_{activation}", "gate", inputs, attrs),
            on_rows(f"activate_{activation}", "activate", {"x": ("float32", "S", columns)}, attrs),
            gate_case(f"gate_halves_{activation}", "gate_halves", {"x": ("float32", "R", 2 * (columns + 2))}, attrs),
        )
        # Each activation with one op.
        for number, case in enumerate(of_activation):
            yield replace(case, exhaustive=number != turn % 3)
    wide: Inputs = {"gate": ("float32", "S", 33), "up": ("activation", "S", 41)}
    yield on_rows("gate_wide", "gate", wide, {"start": 5}, "float16")
    oss = {"limit": 2.0, "slope": 1.702, "shift": 1.0}
    yield gate_case("gate_limited", "gate", {**wide, "up": ("float32", "S", 33)}, oss)
    yield gate_case("gate_halves_limited", "gate_halves", {"x": ("float32", "S", 66)}, oss)
    yield on_rows("scale_rows", "scale_rows", {"x": ("float32", "S", 33), "factors": ("float32", "S")}, {})
    for columns in (3, 33):
        yield on_rows(f"scale_{columns}", "scale", {"x": ("float32", "S", columns), "factor": ("vector", 1)}, {})
        yield on_rows(f"xielu_{columns}", "xielu", {"x": ("float32", "S", columns), "alphas": ("vector", 4)}, {})
        yield on_rows(f"clamp_{columns}", "clamp", {"x": ("float32", "S", columns), "bounds": ("vector", 2)}, {})
        stored: Inputs = {"x": ("activation", "S", columns), "bounds": ("vector", 2)}
        yield on_rows(f"clamp_stored_{columns}", "clamp", stored, {}, "float16")
    for columns, cap in ((3, 30.0), (33, None)):
        attrs = {"scale": 3.5, "cap": cap}
        yield on_rows(f"soft_cap_{columns}_{cap}", "soft_cap", {"x": ("float32", "S", columns)}, attrs)
    inputs = {"x": ("float32", "S", 74), "weight": ("vector", 37), "store0_b": ("float32", "S", 74)}
    attrs = {"eps": EPS, "dtype": "float32", "store": [{"op": "add"}]}
    yield on_rows("rms_norm_residual", "rms_norm", inputs, attrs)
    inputs, attrs = {**inputs, "store1_factor": ("vector", 1)}, {**attrs, "store": [{"op": "add"}, {"op": "scale"}]}
    yield on_rows("rms_norm_factor", "rms_norm", inputs, attrs)
    inputs = {"x": ("float32", "S", 37), "weight": ("vector", 74)}
    yield on_rows("rms_norm_second", "rms_norm", inputs, {"eps": EPS, "dtype": "float32", "row": 1})
    inputs = {"x": ("float32", "S", 74), "weight": ("vector", 74)}
    yield on_rows("rms_norm_groups", "rms_norm", inputs, {"eps": EPS, "dtype": "float32", "groups": 2})
    for columns, x, residual in ((1, "float32", False), (37, "float32", True), (72, "activation", False)):
        inputs = {"x": (x, "S", 2 * columns), "weight": ("vector", columns), "bias": ("vector", columns)}
        if residual:
            inputs["store0_b"] = ("float32", "S", 2 * columns)
        attrs = {"eps": EPS, "dtype": "float32", "centered": True, "store": [{"op": "add"}] if residual else []}
        yield on_rows(f"rms_norm_centered_{columns}", "rms_norm", inputs, attrs, "float16")
    for groups, columns, x, y, batch in (
        (1, 1, "float32", "float32", "S"),
        (1, 37, "float32", "float32", "R"),
        (1, 72, "activation", "activation", "S"),
        (3, 24, "float32", "activation", "S"),
        (7, 3, "activation", "float32", "S"),
    ):
        inputs = {"x": (x, batch, groups * columns), "weight": ("vector", columns)}
        yield on_rows(
            f"rms_norm_{groups}x{columns}_{x}_{y}", "rms_norm", inputs, {"eps": EPS, "dtype": y}, "float16", batch
        )


def gate_case(name: str, op: str, inputs: Inputs, attrs: dict[str, Any]) -> StepCase:
    """Gates of both signs, from tiny ones (only their first digits count) to ones for which exp would overflow."""
    batches = []
    for rows in ROWS:
        rng = np.random.default_rng(rows)
        shapes = {role: (rows, columns) for role, (_, _, columns) in inputs.items()}
        arrays = {role: rng.normal(size=shape) * np.exp(rng.uniform(-9, 5, shape)) for role, shape in shapes.items()}
        ((_, dim, _), *_) = inputs.values()
        batches.append(Batch({dim: rows}, {role: array.astype(np.float32) for role, array in arrays.items()}))
    return StepCase(name, op, inputs, attrs, batches)


def projection_cases() -> Iterator[StepCase]:
    # The levels of 4 and 8 bits are compared in test_cpu_linear.py, those of 2 bits here.
    rows = [(row, False) for row in PROJECTIONS] + [(row, True) for row in MORE_PROJECTIONS]
    for turn, (row, exhaustive) in enumerate(rows):
        gated, quantization, columns, outputs, x, y, optional, options, activation = row
        own = {name: value for name, value in options.items() if name in ("columns", "offset")}
        width = own.get("columns") or (outputs // 2 if gated else outputs)
        dim = "R" if "residual" in optional else "S"
        parts = parts_of(
            columns,
            width,
            batch=dim,
            gated=gated,
            norm_eps=EPS if "norm" in optional else None,
            norm_bias="norm_bias" in optional,
            residual="residual" in optional,
            up_width=width + 20 if "up" in optional else 0,
            **{name: value for name, value in options.items() if name not in own},
        )
        shapes: Inputs = {"bias": ("vector", outputs if gated else width), "into": (y, dim, width)}
        inputs = {
            "x": (x, dim, columns),
            "weight": ("matrix", outputs, columns),
            **{role: shapes[role] for role in optional if role in shapes},
            **inputs_of(parts),
        }
        batches = [Batch({dim: rows}) for rows in (1, 4, 9)]
        name = f"{'gated_' if gated else ''}linear_{quantization}_{columns}_{outputs}_{activation}"
        levels = None if quantization == "q2c" else (("vnni", "neon", "avx512")[turn % 3],)
        attrs = {**own, **parts.attrs, "dtype": y}
        case = StepCase(name, "linear", inputs, attrs, batches, activation, quantization, levels)
        yield replace(case, exhaustive=exhaustive)


def expert_cases() -> Iterator[StepCase]:
    """Experts whose rows are complete tiles, and others; pairs that share rows, or have their own; few and many pairs
    of each expert.
    """
    for router, scales in (("softmax", True), ("softmax_chosen", False), ("sigmoid", True)):
        inputs: Inputs = {"logits": ("float32", "S", 7)}
        inputs |= {role: ("vector", 7) for role in ("bias", "scales") if scales}
        yield on_rows(
            f"route_{router}", "route", inputs, {"chosen": 3, "router": router, "normalized": scales, "scale": 2.5}
        )
    inputs = {"x": ("float32", ["mul", "S", 3], 37), "weights": ("float32", "S", 3), "store0_b": ("float32", "S", 37)}
    yield on_rows("combine", "combine", inputs, {"store": [{"op": "add"}]})
    for gated, quantization, columns, outputs, x, optional, activation in (
        (True, "q4f16", 72, 76, "float32", ("norm", "bias"), "float32"),
        (True, "q8f16", 37, 96, "float32", ("bias",), "int8"),
        (False, "f32", 38, 33, "activation", ("bias", "own", "into"), "float16"),
        (False, "q4f16", 70, 48, "activation", ("own", "into_activation"), "float16"),
        (False, "q6g16", 72, 9, "float32", (), "float32"),
    ):
        pairs: Any = ["mul", "S", 3]
        rows = pairs if "own" in optional else "S"
        eps = EPS if "norm" in optional else None
        parts = parts_of(columns, outputs // 2 if gated else outputs, gated=gated, norm_eps=eps)
        into = {"into": "float32", "into_activation": "activation"}
        made = next((dtype for each, dtype in into.items() if each in optional), None)
        inputs = {
            "x": (x, rows, columns),
            "weight": ("matrix", 5 * outputs, columns),
            "chosen": ("int32", "S", 3),
            **({"bias": ("vector", 5 * outputs)} if "bias" in optional else {}),
            **({"into": (made, pairs, outputs + 11)} if made else {}),
            **inputs_of(parts),
        }
        batches = []
        for count in (1, 4, 9):
            chosen = np.random.default_rng(count).permuted(np.tile(np.arange(5), (count, 1)), axis=1)[:, :3]
            batches.append(Batch({"S": count}, {"chosen": chosen.astype(np.int32)}))
        attrs = {"experts": 5, "dtype": made or "float32", **parts.attrs}
        attrs |= {"columns": outputs + 11, "offset": 7} if made else {}
        name = f"expert_linear_{quantization}_{columns}_{outputs}"
        yield StepCase(name, "expert_linear", inputs, attrs, batches, activation, quantization)


def inputs_of(parts: Parts) -> Inputs:
    return {
        role: ("vector" if isinstance(shape[0], int) else "float32", *shape) for role, shape in parts.shapes.items()
    }


def lora_cases() -> Iterator[StepCase]:
    """Rows with and without an adapter, parts of unequal width, more columns than one task has."""
    for columns, widths, rank, normed, x, y in (
        (37, [5], 1, False, "float32", "float32"),
        (72, [144, 72, 72], 4, True, "float32", "activation"),
        (130, [515, 3], 33, True, "activation", "float32"),
    ):
        outputs, ranks = sum(widths), rank * len(widths)
        inputs: Inputs = {
            "x": (x, "S", columns),
            "adapters": ("int32", "S"),
            "a": ("float32", "M", ranks, columns),
            "b": ("float32", "M", outputs, rank),
            "into": (y, "S", outputs),
        }
        inputs |= {"load0_weight": ("vector", columns)} if normed else {}
        batches = []
        for rows in (1, 7):
            adapters = np.random.default_rng(rows).integers(-1, NUM_ADAPTERS, rows).astype(np.int32)
            batches.append(Batch({"S": rows, "G": rows, "M": NUM_ADAPTERS}, {"adapters": adapters}))
        load = [{"op": "rms_norm", "eps": EPS}] if normed else []
        attrs = {"widths": widths, "dtype": y, "load": load}
        yield StepCase(f"add_lora_{columns}_{rank}", "add_lora", inputs, attrs, batches, "float16")


def rope_cases() -> Iterator[StepCase]:
    sizes = (
        (3, 24, 24, "float32", "float32", 0),
        (1, 2, 2, "activation", "activation", 0),
        (2, 80, 32, "activation", "float32", 0),
        (7, 256, 6, "float32", "activation", 0),
        (3, 24, 20, "activation", "activation", 24),
        (6, 18, 18, "float32", "activation", 54),
    )
    for turn, (num_heads, head_dim, rotary_dim, x, y, norm) in enumerate(sizes):
        inputs: Inputs = {
            "x": (x, "S", num_heads * head_dim),
            "positions": ("int32", "S"),
            "table": ("rope", 50, rotary_dim // 2, 2),
            **({"norm": ("vector", norm)} if norm else {}),
        }
        batches = [
            Batch({"S": rows}, {"positions": np.random.default_rng(rows).integers(0, 50, rows).astype(np.int32)})
            for rows in ROWS
        ]
        scale = (0.3, 20) if rotary_dim < head_dim else None
        attrs = {"head_dim": head_dim, "dtype": y, "position_scale": scale, **({"eps": EPS} if norm else {})}
        name = f"rope_{num_heads}_{head_dim}_{rotary_dim}_{norm}"
        yield StepCase(name, "rope", inputs, attrs, batches, "float16")
        by_row = {**inputs, "table": ("float32", "S", rotary_dim)}
        yield StepCase(f"{name}_by_row", "rope", by_row, attrs, batches, "float16", exhaustive=turn % 2 == 0)


def sampling_cases() -> Iterator[StepCase]:
    """The conformance vectors of all runtimes, then one column, and more than one chunk of 4,096."""
    for case in shared.conformance_cases():
        yield sampling_case("sample" if case.name.startswith("sample") else "adjust_logits", case.name, case.runs())
    for columns in (1, 8_200):
        settings = shared.SETTINGS if columns < 1000 else shared.SETTINGS[-4:]
        yield sampling_case("sample", f"sample_{columns}", shared.sample_case(columns, settings).runs())
        yield sampling_case("top_logprobs", f"top_logprobs_{columns}", shared.top_logprobs_case(columns).runs())
    for columns in (37, 4_200):
        yield sampling_case("adjust_logits", f"adjust_logits_{columns}", shared.adjust_logits_case(columns).runs())
        yield mark_case(columns)


def mark_case(columns: int) -> StepCase:
    inputs: Inputs = {
        "adjusted": ("float32", "A", columns),
        "token_ids": ("int32", "S"),
        "rows": ("int32", "R"),
        "slots": ("int32", "R", 2),
        "sampled": ("int32", "N"),
        "watermark": ("int32", 1, COLUMNS),
    }
    runs = shared.mark_logits_case(columns).runs()
    batches = [Batch(run.dims, {role: run.arrays[role] for role in inputs}) for run in runs]
    levels = ("avx512", "neon") if columns > 1000 else ()
    return StepCase(f"mark_logits_{columns}", "mark_logits", inputs, {}, batches, levels=levels, same_bits=True)


def sampling_case(op: str, name: str, runs: Sequence[Run]) -> StepCase:
    columns = runs[0].arrays["logits"].shape[1]
    inputs: Inputs = {"logits": ("float32", "R", columns)}
    if op != "top_logprobs":
        inputs |= {
            "settings": ("float32", "R", len(Settings._fields)),
            "slots": ("int32", "R", 2),
            "counts": ("int32", "N", columns),
        }
    if op == "adjust_logits":
        inputs |= {"bias": ("float32", "N", columns), "mask": ("int32", "N", -(-columns // 32))}
    if op == "sample":
        inputs |= {"adjusted": ("float32", "A", columns), "sampled": ("int32", "N")}
    batches = [Batch(run.dims, {role: run.arrays[role] for role in inputs}) for run in runs]
    levels = ("avx512", "neon") if columns > 1000 else ()
    # The sums of logits are vectors of the instruction set's length.
    return StepCase(name, op, inputs, {}, batches, levels=levels, same_bits=op == "adjust_logits")
