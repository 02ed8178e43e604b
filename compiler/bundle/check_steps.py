"""Checks the steps of a manifest: each is an op of `ir/ops` on arrays with valid shapes, and its kernels are made for
these shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..errors import QuantizationError
from ..ir.expr import Expr
from ..ir.kv_format import kv_format
from ..ir.ops import OPS
from ..ir.ops.kv_pages import head_dim_of
from ..ir.pages import PAGE_DIMS, PAGE_INPUTS, PAGES, WINDOW, WINDOW_PAGES
from ..ir.sampling import ALTERNATIVES, Settings
from ..quant import form_by_name
from ..quant.kernel_format import weight_format
from .digest import digest
from .manifest import CLASSIFY, EMBED, GENERATE, KernelEntry, Manifest, PlanEntry, StepEntry

Shape = tuple[Expr, ...]
# The ops that can follow the pooling, on one row for each text.
TEXT_OPS = ("linear", "rms_norm")
# The ops that read a joint projection of queries, keys and values, and no pages.
JOINT_OPS = ("rope_heads", "ragged_attention", "ragged_attention_linear")
SAMPLING_OPS = ("adjust_logits", "sample", "top_logprobs")
TOKENS: Shape = ("S",)
STARTS: Shape = (["add", "B", 1],)
# The inputs of a batch that an engine makes. Code that indexes arrays by their values relies on these shapes.
INPUTS: Mapping[str, tuple[Shape, str]] = {
    "token_ids": (TOKENS, "int32"),
    "positions": (TOKENS, "int32"),
    "slots": (TOKENS, "int32"),
    "adapters": (TOKENS, "int32"),
    "token_types": (TOKENS, "int32"),
    "seq_starts": (STARTS, "int32"),
    "page_indptr": (STARTS, "int32"),
    "page_ids": (("L",), "int32"),
    f"{WINDOW}slots": (TOKENS, "int32"),
    f"{WINDOW}page_indptr": (STARTS, "int32"),
    f"{WINDOW}page_ids": (("LW",), "int32"),
    "sample_rows": (("R",), "int32"),
    "sample_positions": (("R",), "int32"),
    "sample_starts": ((["add", "R", 1],), "int32"),
    "sample_page_indptr": ((["add", "R", 1],), "int32"),
    f"{WINDOW}sample_page_indptr": ((["add", "R", 1],), "int32"),
    "sample_slots": (("R", 2), "int32"),
    "sample_settings": (("R", len(Settings._fields)), "float32"),
}
# The only array that is valid for a role, because kernels use its values as indices, or one row of it per slot.
NAMES = {
    name: name
    for name in (
        "token_ids",
        "positions",
        "token_types",
        "slots",
        "adapters",
        "seq_starts",
        "page_indptr",
        "page_ids",
        "sampled",
    )
}
NAMES |= {"rows": "sample_rows", "settings": "sample_settings", "counts": "token_counts"}
# The arrays of steps that compute only sampled rows.
SAMPLED_NAMES = {"positions": "sample_positions", "seq_starts": "sample_starts", "page_indptr": "sample_page_indptr"}
SAMPLING_NAMES = {"slots": "sample_slots", "bias": "logit_bias", "mask": "token_mask"}


class Fault(Exception):
    """A defect of a manifest, and its location."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")


def require(condition: bool, where: str, what: str) -> None:
    """Raises Fault."""
    if not condition:
        raise Fault(where, what)


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
    for name, kernel in manifest.kernels.items():
        require(
            name == f"{kernel.template}_{digest(kernel.facts)}",
            f"kernels.{name[:80]}",
            "has a name that does not match its facts",
        )
        known = (name, f"{name}_kernel", f"__tvm_ffi_{name}")
        require(kernel.entry in known, f"kernels.{name}", f"has the entry {kernel.entry[:80]!r}")
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
    samples = step.op in SAMPLING_OPS
    on_sampled_rows = step.inputs.get("positions") == SAMPLED_NAMES["positions"]
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


def check_variants(
    where: str, step: StepEntry, shapes: Mapping[str, Shape], plan: PlanEntry, manifest: Manifest
) -> None:
    """Check that the step's list has, for every activation, a row that runs anywhere, and that its kernels fit the
    step.
    """
    rows = manifest.variants.get(step.variants, [])
    require(step.variants.startswith(f"{step.op}_"), where, f"names {step.variants[:80]!r}, a list of another op")
    # A bundle without kernels can be run only by the reference.
    for entry in manifest.activations if manifest.kernels else ():
        plain = any(row.activation in (None, entry.dtype) and row.when is None and not row.needs for row in rows)
        require(plain, where, f"list {step.variants[:80]!r} has no row that runs {entry.dtype} on any device")
    for name in {name for row in rows for name in row.kernels}:
        require(name in manifest.kernels, f"variants.{step.variants}", f"names {name[:80]!r}, which is not a kernel")
        kernel = manifest.kernels[name]
        check_bindings(f"kernels.{name}", step, kernel, plan, manifest)
        check_facts(f"kernels.{name}", step, kernel, shapes, plan)
        check_form(f"kernels.{name}", step, kernel, manifest)
        if manifest.target == "cpu":
            require(
                all(isinstance(size, str) for size in kernel.uniforms),
                f"kernels.{name}",
                "has uniforms that are not dims",
            )
    require(all(row.kernels for row in rows), f"variants.{step.variants}", "has a row without kernels")


def check_bindings(where: str, step: StepEntry, kernel: KernelEntry, plan: PlanEntry, manifest: Manifest) -> None:
    names = {**step.inputs, **step.outputs}
    for binding in kernel.bindings:
        role, plane = binding.role, binding.plane
        if role == "scratch":
            require(plane in manifest.scratch, where, f"binds scratch {plane!r}, which does not exist")
            continue
        require(role in names, where, f"binds {role[:40]!r}, which the step does not have")
        name = names[role]
        if name in manifest.weights:
            planes = [each.name for each in manifest.weights[name].planes]
            require(
                (plane or "w") in planes, where, f"binds plane {plane!r} of {role}; its planes are {', '.join(planes)}"
            )
        else:
            require(plane is None, where, f"binds a plane of {role}, which is not a weight")
        writable = role in step.outputs or name in plan.states
        require(binding.access == "read" or writable, where, f"writes to {role}")


def check_form(where: str, step: StepEntry, kernel: KernelEntry, manifest: Manifest) -> None:
    """Check that a kernel reads the format of the step's matrix, because its planes have other sizes in another."""
    name = step.inputs.get("table" if step.op == "embed" else "weight", "")
    facts = kernel.facts if step.op == "embed" else kernel.facts.get("facts")
    found = facts.get("weight") if isinstance(facts, dict) else None
    if name not in manifest.weights or not isinstance(found, dict):
        return
    quantization = manifest.weights[name].quantization
    if quantization is None:
        return
    try:
        expected = asdict(weight_format(form_by_name(quantization)))
    except QuantizationError as error:
        raise Fault(f"weights.{name}", error.message) from error
    require(found == expected, where, f"reads weights of {found}, but {name} has {expected}")


def check_facts(where: str, step: StepEntry, kernel: KernelEntry, shapes: Mapping[str, Shape], plan: PlanEntry) -> None:
    """Check that a kernel was made for the sizes of the step, because native code trusts them."""
    facts, attrs = kernel.facts, step.attrs
    outputs = [tuple(plan.buffers[name].shape) for name in step.outputs.values()]
    pairs: list[tuple[Any, Any]] = []

    def same(table: Any, **expected: Any) -> None:
        if isinstance(table, dict):
            pairs.extend((table[name], value) for name, value in expected.items() if name in table)

    if step.op in ("linear", "gated_linear"):
        rows, columns = shapes["weight"]
        batch, gated = shapes["x"][0], step.op == "gated_linear"
        out = int(rows) // (2 if gated else 1)  # type: ignore[arg-type]
        width = attrs.get("columns") or 0
        flags: dict[str, Any] = {
            "bias": "bias" in shapes,
            "residual": "residual" in shapes,
            "gated": gated,
            "width": width,
        }
        flags["offset"] = attrs.get("offset", 0)
        flags |= {"up_width": shapes["up"][1] if "up" in shapes else 0, "up_start": attrs.get("up_start", 0)}
        # Other kernels read the sum that the one before them has stored.
        adds = any((binding.role, binding.access) == ("summed", "write") for binding in kernel.bindings)
        flags |= {"stream_eps": attrs.get("stream_eps") if adds else None}
        flags |= {"stream_factor": adds and "stream_factor" in shapes}
        flags |= {"norm_row": 1 if "stream" in shapes and not adds else 0}
        writes = {binding.role for binding in kernel.bindings if binding.access == "write"}
        flags |= {"keeps_norm": "normed" in writes}
        same(facts.get("facts"), batch=batch, columns=columns, outputs=out, **flags)
        same(facts.get("rows"), batch=batch, columns=columns, keeps_norm=flags["keeps_norm"])
        same(facts, batch=batch, columns=columns)
    elif step.op == "ragged_attention_linear":
        outputs_of, columns = shapes["weight"]
        roles = {role: role in shapes for role in ("bias", "residual")}
        same(
            facts.get("facts"), batch="S", columns=columns, outputs=outputs_of, width=0, offset=0, gated=False, **roles
        )
        same(facts.get("rows"), batch="S", columns=columns)
        same(facts, batch="S", columns=columns)
    elif step.op == "embed":
        same(facts, rows=shapes["table"][0], columns=shapes["table"][1], first_row=attrs.get("first_row"))
    elif step.op == "embed_positions":
        tables = {"positions": "position_table", "types": "type_table"}
        given = {name: shapes[role][0] if role in shapes else 0 for name, role in tables.items()}
        same(facts, columns=shapes["x"][1], first_position=attrs.get("first_position", 0), **given)
    elif step.op == "pool_rows":
        same(facts, columns=shapes["x"][1], mode=attrs.get("mode", "mean"))
    elif step.op == "add_lora":
        same(facts, columns=shapes["a"][2], rank=shapes["b"][2], widths=attrs["widths"])
    elif step.op == "take_rows":
        same(facts, columns=shapes["x"][1], batch="R", taken="R", rows="S")
    elif step.op == "rms_norm":
        (width,), (rows, columns) = shapes["weight"], shapes["x"]
        if "width" in facts:
            same(facts, rows=rows, columns=columns, width=width)
        else:
            same(facts, batch=rows, columns=width)
        roles = {role: role in shapes for role in ("bias", "residual", "factor")}
        same(facts, centered=attrs.get("centered", False), **roles)
    elif step.op == "fake_quantize":
        same(facts, batch=shapes["x"][0], rows=shapes["x"][0], columns=shapes["x"][1], scale=attrs["scale"])
    elif step.op in ("gate", "gate_halves"):
        same(facts, batch=outputs[0][0], columns=outputs[0][1])
    elif step.op in ("add", "scale", "slice_columns", "soft_cap", *SAMPLING_OPS):
        first = shapes[{"add": "a", "scale": "x", "slice_columns": "x", "soft_cap": "x"}.get(step.op, "logits")]
        same(facts, batch=first[0], columns=first[1], start=attrs.get("start"), stop=attrs.get("stop"))
    if "kv" in shapes:
        _, _, heads, page_size, _ = shapes["kv"]
        head_dim = head_dim_of(shapes["kv"], {"kv": attrs.get("kv", "activation")})
        q = shapes.get("q") or (outputs[0] if outputs else (None, int(heads) * head_dim))  # type: ignore[arg-type]
        table: dict[str, Any] = {
            "num_heads": int(q[1]) // head_dim,  # type: ignore[arg-type]
            "num_kv_heads": heads,
            "head_dim": head_dim,
            "page_size": page_size,
            "rows": "R" if step.inputs.get("positions") == SAMPLED_NAMES["positions"] else "S",
        }
        # A kernel that merges results of others in scratch buffers does not read pages, so their format does not
        # matter.
        if any(binding.role == "kv" for binding in kernel.bindings):
            table["kv"] = attrs.get("kv", "activation")
        same(facts.get("heads"), **table)
        if "qkv" in shapes:
            wide = "qk_norm" in shapes and shapes["qk_norm"] != (2 * head_dim,)
            same(facts.get("preparation"), norm_wide=wide)
    if step.op in JOINT_OPS:
        head_dim, kv_heads = attrs["head_dim"], attrs["num_kv_heads"]
        num_heads = int(shapes["qkv"][1]) // head_dim - 2 * kv_heads  # type: ignore[arg-type]
        same(facts.get("heads"), num_heads=num_heads, num_kv_heads=kv_heads, head_dim=head_dim, rows="S")
    if step.op == "rope":
        same(facts, norm_width=shapes["norm"][0] if "norm" in shapes else 0)
    if "table" in shapes and step.op != "embed":
        rotation = {"positions": shapes["table"][0], "rotary_dim": 2 * int(shapes["table"][1])}  # type: ignore[arg-type]
        same(facts.get("preparation"), **rotation, appends="qkv" in shapes or step.op == "rope")
        same(facts, positions=shapes["table"][0], rotary_dim=2 * int(shapes["table"][1]))  # type: ignore[arg-type]
    for actual, expected in pairs:
        require(actual == expected, where, f"was made for {actual!r}, but {step.op} has {expected!r}")
