"""Checks the kernels of a manifest: every step has kernels for every activation dtype, which bind its arrays and were
made for its shapes and for the formats of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..errors import QuantizationError
from ..ir.ops import sampling
from ..ir.ops.encoders import JOINT_OPS
from ..ir.ops.kv_pages import head_dim_of
from ..quant import form_by_name
from ..quant.kernel_format import weight_format
from .batch_arrays import Shape, is_on_sampled_rows
from .digest import digest
from .entries import KernelEntry, PlanEntry, StepEntry
from .fault import Fault, require
from .manifest import Manifest


def check_names(kernels: Mapping[str, KernelEntry]) -> None:
    """Check that names are made from facts, and entries from names."""
    for name, kernel in kernels.items():
        require(
            name == f"{kernel.template}_{digest(kernel.facts)}",
            f"kernels.{name[:80]}",
            "has a name that does not match its facts",
        )
        known = (name, f"{name}_kernel", f"__tvm_ffi_{name}")
        require(kernel.entry in known, f"kernels.{name}", f"has the entry {kernel.entry[:80]!r}")


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
    elif step.op in ("add", "scale", "slice_columns", "soft_cap", *sampling.OPS):
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
            "rows": "R" if is_on_sampled_rows(step) else "S",
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
