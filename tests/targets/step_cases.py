"""Cases of complete variant rows: each row for each step of the graphs of `one_op.py`, compared with the op, with the
facts that a target derives itself.

Attention and sampling have their own cases, because their batches are more than arrays of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from case_arrays import nothing, random
from kernel_harness import Case, Run
from one_expert_op import EXPERTS
from one_op import graphs

from nearfar.compiler import quant
from nearfar.compiler.ir.expr import evaluate
from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.plan import Step, make_plan
from nearfar.compiler.ir.rope import rope_table
from nearfar.compiler.kernels.quantize_rows import quantize_rows
from nearfar.targets.context import Context, sizes
from nearfar.targets.gpu_attention import DECODE
from nearfar.targets.variant import Variant

OWN_CASES = (
    "rope",
    "append_kv",
    "attention",
    "adjust_logits",
    "mark_logits",
    "sample",
    "top_logprobs",
)
# Integer inputs by name: token ids, rows to select, adapters, experts, which a pair may lack.
LIMITS = {
    "token_ids": (0, 40),
    "sampled": (0, 40),
    "rows": (0, 3),
    "adapters": (-1, 2),
    "token_types": (0, 2),
    "chosen": (-1, EXPERTS),
    "kept_rows": (-4, 48),
    "patch_rows": (0, 40),
    "axis_positions": (0, 64),
    "row_frames": (1, 9),
}
# Pages of kept rows have 4 rows.
DIMS = {"N": 4, "M": 2, "R": 5, "B": 3, "I": 3, "Z": 5, "PH": 12}
SAMPLE_SLOTS = [[3, 0], [-1, 0], [0, 0], [2, 0], [1, 0]]
# The slots of the sequences' states: the first text begins, and one of the others is written where it was read.
STATE_SLOTS = [[4, 0], [1, 3], [2, 2]]
SIZES = (3, 33)
# For ops with a state: a text of several chunks of 64 rows, of which the last one is short or full, between short ones.
STATE_SIZES = (3, 33, 150, 74)

# Large kernels with loops that other cases have too, at other sizes.
AGAIN = ("gated_delta_large", "convolved_delta_shared_keys", "ragged_attention_linear_window")

VariantsOf = Callable[[Step, Context], Sequence[Variant]]


def step_cases(
    variants_of: VariantsOf, quantization: str, activations: tuple[str, ...], *, in_turn: bool = False
) -> Iterator[Case]:
    """A case for each row of the last step of each graph, if its kernels differ from those of the rows before it.

    Without the exhaustive ones, all rows of an op's first graph, and of its other graphs every third row in turn, or
    every twentieth if there are many. ``in_turn``: of many rows of a first graph, each has one of the two activation
    dtypes.
    """
    seen: set[tuple[str, ...]] = set()
    ops: set[str] = set()
    for turn, (op, name, build) in enumerate(graphs()):
        if op in OWN_CASES:
            continue
        plan = make_plan(build())
        context = Context(plan, quant.by_name(quantization), activations)
        rows = variants_of(plan.steps[-1], context)
        first = op not in ops
        ops.add(op)
        for activation in activations:
            for number, row in enumerate(row for row in rows if row.activation in (None, activation)):
                names = tuple(call.name for call in row.kernels)
                if names in seen:
                    continue
                seen.add(names)
                case = case_of(f"{op}_{name}_{activation}_{number}", row, plan.steps[-1], context, activation)
                many = len(rows) > 8
                if first:
                    exhaustive = in_turn and many and (number + activations.index(activation)) % 2 > 0
                else:
                    exhaustive = (turn + number) % (20 if many else 3) > 0
                yield replace(case, exhaustive=exhaustive or case.name.startswith(AGAIN))


def case_of(name: str, row: Variant, step: Step, context: Context, activation: str) -> Case:
    counts: tuple[int, ...] = STATE_SIZES if "state" in step.inputs else SIZES
    # The smallest batch has one row of each text.
    counts = counts[:1] if row.when == DECODE else counts
    runs = lambda: [run_of(name, step, context, activation, size) for size in counts]  # noqa: E731
    build = lambda: [call.build() for call in row.kernels]  # noqa: E731
    shapes = [call.facts.get("shape") for call in row.kernels]
    rounds = ["float16 products" for each in shapes if getattr(each, "products", "") == "float16"]
    rounds += [getattr(each, "dtype", "float32") for each in shapes]
    rounds += ["int8" for call in row.kernels if call.template is quantize_rows]
    if step.op == "ragged_attention" and "weight" in step.inputs and len(row.kernels) > 1:
        # The first kernel stores activations for the second. Bfloat16 is coarser than what the second multiplies in.
        rounds.insert(0, activation)
    return Case(name, build, runs, dtype=next((dtype for dtype in rounds if dtype != "float32"), None))


def run_of(name: str, step: Step, context: Context, activation: str, size: int) -> Run:
    plan, rng, made = context.plan, random(f"{name}{size}"), OPS[step.op].result
    dims = {**DIMS, "S": size, "G": size, "H": size, "V": 4 * (size - 1), "F": size - 1, "C": 2 * (size - 1)}
    if "qkv" in step.inputs and plan.shape_of(step.inputs["qkv"])[0] == "V":
        size = dims["V"]
    inputs: dict[str, Array] = {}
    bound: dict[str, Array] = {}
    # Three texts: one of a single token, one longer than a tile.
    starts = np.array([0, 1, 1 + max(1, size - 9), size] if size > 9 else [0, 1, 2, size], np.int32)
    of_texts: dict[str, Array] = {
        "seq_starts": starts,
        "positions": np.arange(size) - np.repeat(starts[:-1], np.diff(starts)),
        # Some rows are not kept.
        "slots": np.where(np.arange(size) % 5 == 1, -1, np.arange(size) * 7 % 48),
        "sample_slots": np.array(SAMPLE_SLOTS),
    }
    if step.op == "keep_rows" and "rows" in step.inputs:
        # Two rows of a token would be equal, so that it does not matter which of them is kept.
        dims["R"] = len(starts) - 1
        of_texts["rows"] = starts[1:] - 1
    if "state" in step.inputs:
        # The first text begins, and the others are continued.
        of_texts["positions"] = of_texts["positions"] + np.repeat([0, 3, 1], np.diff(starts))
        of_texts["state_slots"] = np.array(STATE_SLOTS)
    roles: dict[str, str] = {}
    for role, array in step.inputs.items():
        # Two norms may read one array.
        first = roles.setdefault(array, role)
        if first != role:
            inputs[role], bound[role] = inputs[first], bound[first]
            continue
        if role in of_texts:
            inputs[role] = bound[role] = of_texts[role].astype(np.int32)
            continue
        if array in plan.constants:
            constant = plan.constants[array]
            inputs[role] = bound[role] = rope_table(constant.attrs["inverse_frequencies"], constant.shape[0])
            continue
        if array in plan.weights and plan.weights[array].columns is not None:
            rows, columns = sizes(plan.shape_of(array))
            planes = context.quantization.pack(
                rng.normal(size=(rows, columns)).astype(np.float32) / np.float32(columns**0.5)
            )
            inputs[role] = context.quantization.unpack(planes, columns)
            bound |= {f"{role}.{plane}": codes for plane, codes in planes.items()}
            continue
        shape, dtype = [evaluate(extent, dims) for extent in plan.shape_of(array)], context.dtype_of(array, activation)
        if step.op == "keep_rows" and role == "rows":
            # Each once, and then the one without a slot: two workgroups that wrote to one slot would be in any order.
            inputs[role] = np.append(rng.permutation(dims["S"]), [1] * shape[0])[: shape[0]].astype(np.int32)
        elif role == "moments":
            # Numbers of elements and sums of squares.
            inputs[role] = np.abs(rng.normal(size=shape)).astype(dtype)
        elif role == "feature_rows":
            tokens, placed = ("S", "F") if plan.shape_of(array)[0] == "F" else ("V", "C")
            inputs[role] = rng.permutation(dims[tokens])[: dims[placed]].astype(np.int32)
        elif dtype == "int32":
            inputs[role] = rng.integers(*LIMITS[role], shape).astype(np.int32)
        else:
            inputs[role] = rng.normal(size=shape).astype(dtype)
        bound[role] = inputs[role]
    for start in (step.attrs[each] for each in ("a_start", "dt_start") if each in step.attrs):
        # Some rows forget everything, and some nothing.
        times = inputs[{"gated_delta": "abz", "ssm_scan": "dt"}.get(step.op, "x")][:, start : start + 6]
        times[::5], times[3::7] = 30, -60
    if "into" in inputs:
        before = bound.pop("into")
        inputs["into"] = before.astype(np.float32)
    elif made is not None:
        y = step.outputs[made]
        shape = [evaluate(extent, dims) for extent in plan.shape_of(y)]
        before = nothing(tuple(shape), context.dtype_of(y, activation))
    more = {
        role: nothing(tuple(evaluate(extent, dims) for extent in plan.shape_of(name)), "float32")
        for role, name in step.outputs.items()
        if role != made
    }
    bound |= {role: array.copy() for role, array in more.items()}
    inputs |= more
    changed = OPS[step.op].states if made is None else ("state", "conv")
    states = {role: inputs[role].copy() for role in OPS[step.op].states if role in changed}
    result = OPS[step.op].run({**inputs, **states}, step.attrs)
    if made is None:
        return Run(dims, bound, states)
    assert result is not None
    return Run(dims, {**bound, made: before}, {made: result.astype(before.dtype), **more, **states})
