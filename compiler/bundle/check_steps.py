"""Checks the steps of a manifest: each is an op of `ir/ops` on arrays with valid shapes. `check_kernels.py` checks that
its kernels are made for these shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..ir.kv_format import kv_format
from ..ir.ops import OPS, sampling
from ..ir.ops.encoders import JOINT_OPS
from ..ir.ops.kv_pages import head_dim_of
from ..ir.pages import PAGE_DIMS, PAGE_INPUTS, PAGES, WINDOW, WINDOW_PAGES
from ..ir.sampling import ALTERNATIVES
from .batch_arrays import INPUTS, NAMES, SAMPLED_NAMES, SAMPLING_NAMES, Shape, is_on_sampled_rows
from .check_kernels import check_names, check_variants
from .entries import PlanEntry, StepEntry
from .fault import Fault, require
from .manifest import CLASSIFY, EMBED, GENERATE, Manifest

# The ops that can follow the pooling, on one row for each text.
TEXT_OPS = ("linear", "rms_norm")


def check_steps(manifest: Manifest) -> None:
    """Raises Fault."""
    require(bool(manifest.plans), "plans", "is empty")
    offered = [entry.dtype for entry in manifest.activations]
    require(
        bool(offered) and len(set(offered)) == len(offered),
        "activations",
        "must offer at least one dtype, without duplicates",
    )
    require_distinct(manifest)
    check_names(manifest.kernels)
    for name, plan in manifest.plans.items():
        check_plan(f"plans.{name}", name, plan, manifest)


def require_distinct(manifest: Manifest) -> None:
    """Check that all arrays have different names, even in different tables, because runtimes store them in one
    table.
    """
    names = [
        name for table in (manifest.inputs, manifest.states, manifest.constants, manifest.buffers) for name in table
    ]
    names += [f"scratch.{name}" for name in manifest.scratch]
    names += [f"{name}.{plane.name}" for name, weight in manifest.weights.items() for plane in weight.planes]
    names += [*manifest.weights, *manifest.host_weights]
    require(len(set(names)) == len(names), "plans", "has two arrays with one name")


def check_plan(where: str, name: str, plan: PlanEntry, manifest: Manifest) -> None:
    vocabulary = manifest.spec.vocab_size
    for input_name, (shape, dtype) in INPUTS.items():
        entry = plan.inputs.get(input_name)
        fits = entry is None or (tuple(entry.shape), entry.dtype) == (shape, dtype)
        require(fits, f"{where}.inputs.{input_name}", f"must be {list(shape)} of {dtype}")
    for gathered in plan.gathered:
        check_gathered(f"{where}.gathered.{gathered[:80]}", gathered, plan, manifest)
    for state, buffer_entry in plan.states.items():
        first, *rest = buffer_entry.shape or [0]
        fixed = first in (*PAGE_DIMS, "N", "M") and all(isinstance(size, int) for size in rest)
        require(fixed, f"{where}.states.{state}", "must have one row per page, slot or adapter")
    num_top = min(ALTERNATIVES, vocabulary)
    expected: dict[str, dict[str, tuple[Shape, str]]] = {
        GENERATE: {
            "logits": (("R", vocabulary), "float32"),
            "next_token_ids": (("R",), "int32"),
            "token_logprobs": (("R",), "float32"),
            "top_token_ids": (("W", num_top), "int32"),
            "top_logprobs": (("W", num_top), "float32"),
        },
    }
    if manifest.embedding is not None:
        rows = "R" if any(state.shape[0] in PAGE_DIMS for state in plan.states.values()) else "B"
        expected[EMBED] = {"embeddings": ((rows, manifest.embedding.size), "float32")}
    if manifest.classifier is not None:
        rows = "S" if manifest.classifier.per_token else "B"
        expected[CLASSIFY] = {"scores": ((rows, len(manifest.classifier.labels)), "float32")}
    if name in expected:
        require(
            plan.outputs.keys() == expected[name].keys(), f"{where}.outputs", f"must be {', '.join(expected[name])}"
        )
    for role, buffer in plan.outputs.items():
        output = plan.buffers.get(buffer)
        require(output is not None, f"{where}.outputs.{role}", f"names {buffer[:80]!r}, which is not a buffer")
        if name in expected and output is not None:
            shape, dtype = expected[name][role]
            require(
                (tuple(output.shape), output.dtype) == (shape, dtype),
                f"{where}.outputs.{role}",
                f"must be {list(shape)} of {dtype}",
            )
    for index, step in enumerate(plan.steps):
        here = f"{where}.steps[{index}]"
        try:
            shapes = check_step(here, step, plan, manifest)
            check_variants(here, step, shapes, plan, manifest)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # The rules of the ops raise these.
            raise Fault(here, str(error)[:300]) from error


def check_gathered(where: str, name: str, plan: PlanEntry, manifest: Manifest) -> None:
    """Check that an input has the width of its table, and that the table has a row for every token."""
    gathered, entry = plan.gathered[name], plan.inputs.get(name)
    missing = [weight[:80] for weight in gathered.weights if weight not in manifest.host_weights]
    require(not missing, where, f"names {', '.join(missing)}, which are not weights of the host")
    tables = [manifest.host_weights[weight].shape for weight in gathered.weights]
    widths = {columns for _, columns in tables}
    require(len(widths) == 1, where, f"has tables with {sorted(widths)} columns; all must have the same number")
    must_be = ["S", *widths]
    fits = name not in INPUTS and entry is not None and (entry.shape, entry.dtype) == (must_be, "float32")
    require(fits, where, f"must be an input {must_be} of float32")
    rows, vocabulary = sum(rows for rows, _ in tables), manifest.spec.vocab_size
    require(rows >= vocabulary, where, f"has {rows} rows for {vocabulary} tokens")
    require(math.isfinite(gathered.scale) and gathered.scale > 0, where, f"has the scale {gathered.scale}")


def check_step(where: str, step: StepEntry, plan: PlanEntry, manifest: Manifest) -> dict[str, Shape]:
    """The shapes of a step's inputs by role. Raises Fault, or the errors of the op's rules."""
    require(step.op in OPS, where, f"op {step.op[:40]!r} is not known")
    op = OPS[step.op]
    arrays = {role: array_of(where, name, plan, manifest) for role, name in step.inputs.items()}
    op.check_inputs(step.op, {role: kind for role, (_, kind) in arrays.items()})  # type: ignore[misc]
    op.canonical(step.op, step.attrs)
    for name, value in step.attrs.items():
        require(not isinstance(value, float) or math.isfinite(value), where, f"attribute {name} is not finite")
    shapes = {role: shape for role, (shape, _) in arrays.items()}
    require_roles(where, step, arrays, plan, manifest)
    results = op.results(shapes, step.attrs)
    require(results.keys() == step.outputs.keys(), where, f"outputs must be {', '.join(results) or 'none'}")
    for role, (shape, dtype) in results.items():
        buffer = plan.buffers.get(step.outputs[role])
        require(buffer is not None, where, f"output {role} must be a buffer")
        assert buffer is not None
        made, stored = f"{list(shape)} of {dtype}", f"{buffer.shape} of {buffer.dtype}"
        require(
            (shape, dtype) == (tuple(buffer.shape), buffer.dtype),
            where,
            f"output {role} is {made}, but its buffer is {stored}",
        )
    if "into" in step.inputs:
        require(
            step.inputs["into"] == step.outputs.get(op.result or ""), where, "output and 'into' must be the same buffer"
        )
    return shapes


def array_of(where: str, name: str, plan: PlanEntry, manifest: Manifest) -> tuple[Shape, str]:
    """The shape and kind of an array that a step names."""
    for table in (plan.buffers, plan.inputs, plan.states):
        if name in table:
            return tuple(table[name].shape), table[name].dtype
    if name in plan.constants:
        return tuple(plan.constants[name].shape), plan.constants[name].kind
    require(name in manifest.weights, where, f"names {name[:80]!r}, which is not an array of the plan")
    shape = manifest.weights[name].shape
    return tuple(shape), "vector" if len(shape) == 1 else "matrix"


def require_roles(
    where: str, step: StepEntry, arrays: Mapping[str, tuple[Shape, str]], plan: PlanEntry, manifest: Manifest
) -> None:
    """Check the sizes of arrays that kernels index, which the rules of the ops do not check."""
    spec, shapes = manifest.spec, {role: shape for role, (shape, _) in arrays.items()}
    samples = step.op in sampling.OPS
    on_sampled_rows = is_on_sampled_rows(step)
    names = {**NAMES, **(SAMPLING_NAMES if samples else {}), **(SAMPLED_NAMES if on_sampled_rows else {})}
    in_window = "kv" in shapes and shapes["kv"][0] == WINDOW_PAGES
    if in_window:
        names = {role: f"{WINDOW}{name}" if name in PAGE_INPUTS else name for role, name in names.items()}
    for role, name in step.inputs.items():
        require(names.get(role, name) == name, where, f"input {role} is {name[:80]!r}; it must be {names.get(role)!r}")
    expected: dict[str, tuple[Shape, str]] = {"sampled": (("N",), "int32")}
    if samples:
        by_slot: Shape = ("N", spec.vocab_size)
        expected |= {"logits": (("R", spec.vocab_size), "float32"), "adjusted": (("A", spec.vocab_size), "float32")}
        expected |= {
            "counts": (by_slot, "int32"),
            "bias": (by_slot, "float32"),
            "mask": (("N", -(-spec.vocab_size // 32)), "int32"),
        }
    for role in arrays.keys() & expected.keys():
        (shape, dtype), (must_be, of) = arrays[role], expected[role]
        require(
            arrays[role] == expected[role],
            where,
            f"input {role} is {list(shape)} of {dtype}; it must be {list(must_be)} of {of}",
        )
    states = (
        {"kv", "sampled", "counts"}
        | ({"bias", "mask"} if samples else set())
        | ({"a", "b"} if step.op == "add_lora" else set())
    )
    for role in step.inputs.keys() & states:
        require(step.inputs[role] in plan.states, where, f"input {role} must be a state")
    rows = [shapes[role][0] for role in ("x", "q", "qkv", "k") if role in shapes and step.op != "take_rows"]
    per_text = step.op in TEXT_OPS and rows == ["B"]
    needs_tokens = bool(shapes.keys() & {"positions", "adapters"}) or step.op == "append_kv"
    require(
        per_text
        or all(each == ("R" if on_sampled_rows else "S") if needs_tokens else each in ("S", "R") for each in rows),
        where,
        "has rows that are not tokens",
    )
    for role in ("residual", "up", "stream", "into"):
        of = "qkv" if "qkv" in shapes else "x"
        if role in shapes and of in shapes:
            require(shapes[role][0] == shapes[of][0], where, f"input {role} must have the rows of {of}")
    if step.op in ("take_rows", "pool_rows"):
        require(shapes["x"][0] == "S", where, "must take rows of tokens")
    if step.op == "embed_positions":
        first = step.attrs.get("first_position", 0)
        rows_of = {role: shapes[role][0] for role in ("position_table", "type_table") if role in shapes}
        longest = rows_of.get("position_table", manifest.context + first)
        enough = isinstance(longest, int) and longest >= manifest.context + first
        require(enough, where, f"has a table of {longest} positions")
        types = rows_of.get("type_table", spec.num_token_types)
        require(isinstance(types, int) and types >= spec.num_token_types, where, f"has a table of {types} types")
    if step.op in JOINT_OPS:
        kinds = {spec.heads_of(layer) for layer in range(spec.num_layers)}
        own = (step.attrs["num_kv_heads"], step.attrs["head_dim"])
        require(own in kinds, where, f"has {own[0]} kv heads of {own[1]}, which no layer has")
    if step.op == "embed":
        table, first = shapes["table"], step.attrs.get("first_row")
        require(
            table[0] == spec.vocab_size if first is None else first + table[0] <= spec.vocab_size,
            where,
            f"table has {table[0]} rows",
        )
        require("into" not in shapes or shapes["into"] == ("S", table[1]), where, "has an 'into' of another shape")
    if "kv" in shapes:
        head_dim = head_dim_of(shapes["kv"], {"kv": manifest.kv})
        form = kv_format(manifest.kv)
        width = head_dim if form is None else form.words(head_dim)
        packed = arrays["kv"][1] == "uint32"
        kinds = {spec.heads_of(layer) for layer in range(spec.num_layers)}
        pages = WINDOW_PAGES if in_window else PAGES
        allowed = [(pages, 2, heads, manifest.page_size, width) for heads, size in kinds if size == head_dim]
        layers = ", ".join(f"{heads} kv heads of {size}" for heads, size in sorted(kinds))
        require(
            shapes["kv"] in allowed and packed == (form is not None),
            where,
            f"pages are {list(shapes['kv'])}, but layers have {layers}",
        )
        require(step.attrs.get("kv", "activation") == manifest.kv, where, f"pages are {manifest.kv}")
        if in_window and "page_ids" in shapes:
            windows = [window for window in spec.windows if window is not None and window < manifest.context]
            most, window = max(windows, default=0), step.attrs.get("window")
            require(
                window is not None and window <= most,
                where,
                f"sees {'all' if window is None else window} tokens, but pages behind {most} are given back",
            )
    if "table" in shapes and step.op != "embed":
        positions, half, _ = shapes["table"]
        long_enough = (
            isinstance(positions, int)
            and positions >= manifest.context
            and isinstance(half, int)
            and 2 * half <= spec.largest_head_dim
        )
        require(long_enough, where, f"rotation table has {positions} positions of {half} pairs")
    if "offset" in step.attrs or "columns" in step.attrs:
        outputs = shapes["weight"][0] if step.op == "linear" else int(shapes["weight"][0]) // 2  # type: ignore[arg-type]
        total = step.attrs.get("columns") or outputs
        require(step.attrs.get("offset", 0) + outputs <= total, where, "writes columns beyond the last one")
