"""The cases of ops that read the rows of sequences: over complete texts, and with a state for each sequence; those that
pass rows to a model's heads, and those of pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cpu_steps import Batch, Inputs, StepCase

from nearfar.compiler.ir.ops.encoders import POOLINGS
from nearfar.compiler.runtime.batch import FloatArray

EPS = 1e-6
# The channels of x, those of the result unless each has its own filter, and the attributes.
CONVOLUTIONS: dict[str, tuple[int, int | None, dict[str, Any]]] = {
    "frames": (1, 19, {"size": 3, "before": 1, "width": 3, "places": 7, "steps": 8, "stride": 2, "frames": 8}),
    "both": (17, 5, {"size": 3, "before": 1, "width": 3, "places": 4, "steps": 4, "stride": 2, "frames": 8}),
    "depthwise": (37, None, {"size": 3, "before": 1, "width": 3, "places": 5, "steps": 2, "stride": 2, "frames": 8}),
    "time": (130, None, {"size": 9, "before": 4}),
}


def text_cases() -> Iterator[StepCase]:
    """The ops of models without pages: texts of one token, of several tiles and blocks of keys, and of a page."""

    def of_texts(lengths: Sequence[int]) -> Batch:
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        positions = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
        types = positions % 2
        arrays = {"seq_starts": starts, "positions": positions, "token_types": types}
        return Batch({"S": int(starts[-1]), "B": len(lengths)}, arrays)

    texts = [of_texts(lengths) for lengths in ((1,), (3, 1, 16, 33), (17, 270, 2))]
    starts: Inputs = {"seq_starts": ("int32", ["add", "B", 1])}

    def given(batches: Sequence[Batch], inputs: Inputs) -> list[Batch]:
        return [
            Batch(each.dims, {role: each.arrays[role] for role in inputs if role in each.arrays}) for each in batches
        ]

    for mode in POOLINGS:
        inputs: Inputs = {"x": ("float32", "S", 37), **starts}
        yield StepCase(f"pool_rows_{mode}", "pool_rows", inputs, {"mode": mode}, given(texts, inputs))
    for size in (1, 3, 7):
        inputs = {"x": ("float32", "S", 37), "positions": ("int32", "S")}
        yield StepCase(f"near_rows_{size}", "near_rows", inputs, {"size": size}, given(texts, inputs))
    for name, (channels, outputs, options) in CONVOLUTIONS.items():
        filters = options["size"] * options.get("width", 1) * channels * (outputs or 1)
        columns = options.get("steps", 1) * options.get("places", 1) * channels
        inputs = {"x": ("float32", "S", columns), "positions": ("int32", "S"), "weight": ("vector", filters)}
        inputs |= {"bias": ("vector", outputs or channels)}
        batches = given(texts, inputs)
        if "frames" in options:
            inputs["row_frames"] = ("int32", "S")
            rows = [{"row_frames": np.arange(each.dims["S"], dtype=np.int32) % 8 + 1} for each in batches]
            batches = [replace(each, arrays={**each.arrays, **more}) for each, more in zip(batches, rows, strict=True)]
        attrs = {"depthwise": outputs is None, **options}
        yield StepCase(f"convolve_{name}", "convolve", inputs, attrs, batches)
    for columns in (7, 37):
        inputs = {"x": ("float32", "S", 4 * columns), "row_frames": ("int32", "S")}
        counts = [Batch(each.dims, {"row_frames": np.arange(each.dims["S"], dtype=np.int32) % 6}) for each in texts]
        yield StepCase(f"row_moments_{columns}", "row_moments", inputs, {"frame": columns}, counts)
        inputs = {"x": inputs["x"], "moments": ("float32", "S", 3), "positions": ("int32", "S")}
        inputs |= {"weight": ("vector", columns), "bias": ("vector", columns)}
        moments = [
            Batch(each.dims, {"positions": each.arrays["positions"], "moments": moments_of(each.dims["S"])})
            for each in texts
        ]
        yield StepCase(f"clip_norm_{columns}", "clip_norm", inputs, {"eps": 1e-5}, moments)
    for columns, quantization, attrs in ((37, "f32", {"first_position": 2}), (72, "q4f16", {})):
        inputs = {"x": ("float32", "S", columns), "positions": ("int32", "S"), "token_types": ("int32", "S")}
        inputs |= {"position_table": ("matrix", 280, columns), "type_table": ("matrix", 2, columns)}
        name = f"embed_positions_{columns}_{quantization}"
        yield StepCase(name, "embed_positions", inputs, attrs, given(texts, inputs), quantization=quantization)
    own_heads: Inputs = {"qkv": ("activation", "S", 3 * 3 * 20), "positions": ("int32", "S"), **starts}
    own_heads |= {"distance_bias": ("vector", 3 * 667), "distance_heads": ("vector", 3 * 667 * 20)}
    attrs = {"head_dim": 20, "num_kv_heads": 3, "causal": False}
    yield StepCase("ragged_attention_own", "ragged_attention", own_heads, attrs, given(texts, own_heads), "float16")
    shapes: tuple[tuple[int, int, int, dict[str, Any], str], ...] = (
        (12, 3, 1, {"causal": False}, "float32"),
        (20, 2, 1, {"causal": False, "window": 40, "softcap": 3.0}, "float32"),
        (32, 2, 2, {"causal": False, "window": 5, "softcap": 20.0, "scale": 0.2}, "float16"),
        (64, 1, 3, {"scale": 0.2}, "float32"),
    )
    for head_dim, kv_heads, group, scores, activation in shapes:
        heads = {"head_dim": head_dim, "num_kv_heads": kv_heads}
        qkv: Inputs = {"qkv": ("activation", "S", (group + 2) * kv_heads * head_dim), "positions": ("int32", "S")}
        inputs = {**qkv, **starts}
        if head_dim == 12:
            inputs |= {"sinks": ("vector", kv_heads), "distance_bias": ("vector", kv_heads * (2 * 334 - 1))}
        if head_dim == 20:
            inputs["distance_heads"] = ("vector", 2 * kv_heads * 5 * head_dim)
            inputs["distance_rows"] = ("vector", 2 * 334 - 1)
        name = f"ragged_attention_{head_dim}"
        yield StepCase(name, "ragged_attention", inputs, {**heads, **scores}, given(texts, inputs), activation)
        inputs = {**inputs, "weight": ("matrix", 37, group * kv_heads * head_dim), "bias": ("vector", 37)}
        inputs |= {"store0_b": ("float32", "S", 37)} if head_dim == 12 else {}
        rounding, quantization = ("float32", "f32") if head_dim > 12 else ("int8", "q8f16")
        own = {**heads, **scores, "store": [{"op": "add"}] if head_dim == 12 else []}
        name, batches = f"ragged_attention_linear_{head_dim}", given(texts, inputs)
        # It has the attention of `ragged_attention_64`, and the projection of the case with 32.
        exhaustive = head_dim == 64
        yield StepCase(name, "ragged_attention", inputs, own, batches, rounding, quantization, exhaustive=exhaustive)
        if head_dim == 32:
            patches: Inputs = {"qkv": ("activation", "V", *qkv["qkv"][2:]), "seq_starts": ("int32", ["add", "I", 1])}
            of_patches = [
                Batch({"V": b.dims["S"], "I": b.dims["B"]}, {"seq_starts": b.arrays["seq_starts"]}) for b in texts
            ]
            attrs = {**heads, "causal": False}
            yield StepCase("ragged_attention_patches", "ragged_attention", patches, attrs, of_patches, activation)
        inputs = {**qkv, "table": ("rope", 280, head_dim // 4, 2), "qk_norm": ("vector", 2 * head_dim)}
        prepared: dict[str, Any] = {**heads, "eps": EPS, "norms_values": head_dim == 64}
        yield StepCase(f"rope_heads_{head_dim}", "rope_heads", inputs, prepared, given(texts, inputs), activation)
        # With a table that has a row for each row, positions are not read.
        by_row: Inputs = {**inputs, "table": ("float32", "S", head_dim // 2)}
        del by_row["positions"]
        name = f"rope_heads_by_row_{head_dim}"
        yield StepCase(name, "rope_heads", by_row, prepared, given(texts, by_row), activation)


def moments_of(rows: int) -> FloatArray:
    """Of rows with up to 4 elements that count."""
    generator = np.random.default_rng(rows)
    counts = np.arange(rows) % 5
    return np.stack([counts, generator.normal(0, 1, rows), counts * generator.uniform(0.5, 2, rows)], 1).astype(
        np.float32
    )


def state_cases() -> Iterator[StepCase]:
    """The ops with a state for each sequence: of a sequence's first row, of one that is continued, and of two that read
    one slot.
    """
    batches = []
    for lengths in ((1,), (1, 3, 21)):
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        befores = (0, 3, 1)[-len(lengths) :]
        positions = [np.arange(length) + before for length, before in zip(lengths, befores, strict=True)]
        arrays = {
            "seq_starts": starts,
            "positions": np.concatenate(positions).astype(np.int32),
            "state_slots": np.array([[4, 4], [1, 0], [1, 3]][-len(lengths) :], np.int32),
        }
        batches.append(Batch({"S": int(starts[-1]), "B": len(lengths), "Z": 5}, arrays))
    rows: Inputs = {
        "state_slots": ("int32", "B", 2),
        "seq_starts": ("int32", ["add", "B", 1]),
        "positions": ("int32", "S"),
    }
    silu: dict[str, Any] = {"start": 5, "activation": "silu"}
    for taps, columns, attrs in ((3, 37, {}), (7, 300, silu), (4, 141, {**silu, "gated": True})):
        inputs: Inputs = {"x": ("float32", "S", 3 * columns + 9), "weight": ("vector", taps * columns)}
        inputs |= {"state": ("float32", "Z", taps - 1, columns), **rows}
        inputs |= {"bias": ("vector", columns)} if attrs else {}
        yield StepCase(f"causal_conv_{taps}", "causal_conv", inputs, attrs, batches)
    for key_dim, value_dim in ((5, 7), (40, 70)):
        inputs = {"qkv": ("float32", "S", 2 * 3 * key_dim + 6 * value_dim), "abz": ("float32", "S", 20 + 6 * value_dim)}
        inputs |= {"vectors": ("vector", 12 + value_dim), "state": ("float32", "Z", 6, key_dim, value_dim), **rows}
        attrs = {"a_start": 3, "b_start": 9, "z_start": 17, "eps": 1e-5}
        yield StepCase(f"gated_delta_{key_dim}", "gated_delta", inputs, attrs, batches)
        columns = 2 * 3 * key_dim + 6 * value_dim
        inputs = {"x": ("float32", "S", 2 + columns + 20 + 6 * value_dim), "weight": ("vector", 4 * columns)}
        inputs |= {"vectors": ("vector", 12 + value_dim), "conv": ("float32", "Z", 3, columns)}
        inputs |= {"state": ("float32", "Z", 6, key_dim, value_dim), **rows}
        starts_in_x = {name: 2 + columns + start for name, start in attrs.items() if name != "eps"}
        attrs = {"start": 2, **starts_in_x, "eps": 1e-5}
        yield StepCase(f"convolved_delta_{key_dim}", "convolved_delta", inputs, attrs, batches)
        inputs = {"xbc": ("float32", "S", 6 * value_dim + 2 * 2 * key_dim), "dt": ("float32", "S", 20 + 6 * value_dim)}
        inputs |= {"vectors": ("vector", 18), "state": ("float32", "Z", 6, value_dim, key_dim), **rows}
        yield StepCase(f"ssm_scan_{key_dim}", "ssm_scan", inputs, {"dt_start": 11, "z_start": 18}, batches)


def kept_cases() -> Iterator[StepCase]:
    """Rows of tokens, of which one has no slot, kept in pages of 4, and those of two samples, kept by slot."""
    rows = {"slots": np.array([9, -1, 0], np.int32), "kept_rows": np.array([11, -1, -3], np.int32)}
    dims = {"S": 3, "H": 3, "PH": 3, "N": 3}
    for columns, activation in ((37, "float32"), (130, "float16")):
        memory: Inputs = {"kept": ("activation", "PH", 4, columns)}
        own = ("activation", "N", columns)
        inputs: Inputs = {
            "x": ("float32", "S", columns),
            "weight": ("vector", columns),
            **memory,
            "slots": ("int32", "S"),
        }
        batch = Batch(dims, {"slots": rows["slots"]})
        yield StepCase(f"keep_rows_{columns}", "keep_rows", inputs, {"eps": EPS}, [batch], activation)
        inputs = {"x": ("float32", "R", columns), "weight": ("vector", columns), "kept": own}
        inputs["sample_slots"] = ("int32", "R", 2)
        batch = Batch({"R": 2, "N": 3}, {"sample_slots": np.array([[2, 7], [0, 7]], np.int32)})
        yield StepCase(f"keep_slots_{columns}", "keep_rows", inputs, {"eps": EPS}, [batch], activation)
        plain = {name: each for name, each in inputs.items() if name != "weight"}
        yield StepCase(f"keep_plain_{columns}", "keep_rows", plain, {}, [batch], activation)
        inputs = {"x": ("float32", "R", columns), "weight": ("vector", columns), **memory}
        inputs |= {"slots": ("int32", "S"), "rows": ("int32", "R")}
        samples = {"slots": rows["slots"], "rows": np.array([2, 1], np.int32)}
        batch = Batch({**dims, "R": 2}, samples)
        yield StepCase(f"keep_samples_{columns}", "keep_rows", inputs, {"eps": EPS}, [batch], activation)
        inputs = {"x": ("float32", "S", columns), **memory, "own": own, "kept_rows": ("int32", "S")}
        batch = Batch(dims, {"kept_rows": rows["kept_rows"]})
        yield StepCase(f"join_kept_{columns}", "join_kept", inputs, {}, [batch], activation)


def image_cases() -> Iterator[StepCase]:
    """Patches between rows of a table, blocks of 4 patches, and two features in a batch of three tokens."""
    for columns, quantization, taps in ((37, "f32", 1), (72, "q8f16", 5)):
        rows = np.arange(3 * taps, dtype=np.int32).reshape(3, taps) * 7 % 20
        inputs: Inputs = {"x": ("float32", "V", columns), "table": ("matrix", 20, columns)}
        inputs |= {"patch_rows": ("int32", "V", taps), "patch_weights": ("float32", "V", taps)}
        batch = Batch({"V": 3}, {"patch_rows": rows})
        yield StepCase(f"mix_rows_{columns}", "mix_rows", inputs, {}, [batch], quantization=quantization)
        for mode in ("join", "mean"):
            attrs = {"size": 4, "mode": mode}
            batch = Batch({"V": 12, "F": 3})
            yield StepCase(f"fold_rows_{mode}_{columns}", "fold_rows", {"x": inputs["x"]}, attrs, [batch])
        inputs = {"into": ("float32", "S", columns), "features": ("float32", "F", columns)}
        inputs["feature_rows"] = ("int32", "F")
        batches = [Batch({"S": 3, "F": len(rows)}, {"feature_rows": np.array(rows, np.int32)}) for rows in ([2, 0], [])]
        yield StepCase(f"place_rows_{columns}", "place_rows", inputs, {}, batches)
        inputs = {**inputs, "features": ("float32", "F", 2 * columns)}
        attrs = {"first": columns, "adds": True}
        yield StepCase(f"place_rows_adds_{columns}", "place_rows", inputs, attrs, batches)
    for pairs in (1, 12, 33):
        axes = [[axis, axis, pairs, 3] for axis in (1, 2) if axis < pairs]
        positions = np.array([[0, 7, 3], [9, 1, 1], [2, 2, 19]], np.int32)
        inputs = {"table": ("rope", 20, pairs, 2), "axis_positions": ("int32", "S", 3)}
        batch = Batch({"S": 3}, {"axis_positions": positions})
        yield StepCase(f"rope_rows_{pairs}", "rope_rows", inputs, {"axes": axes}, [batch])
