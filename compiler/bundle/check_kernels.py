"""Checks the kernels of a manifest: every step has kernels for every activation dtype, which bind its arrays and were
made for its shapes and for the formats of its weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from ..ir.ops import Bound, Use
from ..quant import form_by_name
from ..quant.kernel_format import weight_format
from ..runtime.errors import QuantizationError
from .digest import digest, plain
from .entries import BindingEntry, KernelEntry, PlanEntry, StepEntry
from .fault import Fault, require
from .manifest import Manifest

# The parts of a kernel's facts that describe the step. Others, such as its tile, have facts of the same names.
PARTS = ("facts", "rows", "heads")


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


def check_variants(where: str, step: StepEntry, use: Use, plan: PlanEntry, manifest: Manifest) -> None:
    """Check that the step's list has, for every activation, a variant that runs anywhere, and that its kernels fit the
    step.
    """
    variants = manifest.variants.get(step.variants, [])
    require(step.variants.startswith(f"{step.op}_"), where, f"names {step.variants[:80]!r}, a list of another op")
    # A bundle without kernels can be run only by the reference.
    for entry in manifest.activations if manifest.kernels else ():
        runs = [each for each in variants if each.activation in (None, entry.dtype)]
        anywhere = any(each.when is None and not each.needs for each in runs)
        require(anywhere, where, f"list {step.variants[:80]!r} has no variant that runs {entry.dtype} on any device")
    for name in {name for each in variants for name in each.kernels}:
        require(name in manifest.kernels, f"variants.{step.variants}", f"names {name[:80]!r}, which is not a kernel")
        kernel = manifest.kernels[name]
        check_bindings(f"kernels.{name}", step, kernel, plan, manifest)
        check_facts(f"kernels.{name}", step.op, use, kernel.facts, kernel.bindings)
        check_form(f"kernels.{name}", step, use, kernel, manifest)
        if manifest.target == "cpu":
            require(
                all(isinstance(size, str) for size in kernel.uniforms),
                f"kernels.{name}",
                "has uniforms that are not dims",
            )
    require(all(each.kernels for each in variants), f"variants.{step.variants}", "has a variant without kernels")


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


def check_form(where: str, step: StepEntry, use: Use, kernel: KernelEntry, manifest: Manifest) -> None:
    """Check that a kernel reads the format of the step's matrices, because planes have other sizes in another."""
    formats = [table["weight"] for table in tables_of(kernel.facts) if isinstance(table.get("weight"), dict)]
    for role, kind in use.kinds.items():
        name = step.inputs[role]
        quantization = manifest.weights[name].quantization if kind == "matrix" else None
        if quantization is None:
            continue
        try:
            expected = asdict(weight_format(form_by_name(quantization)))
        except QuantizationError as error:
            raise Fault(f"weights.{name}", error.message) from error
        for found in formats:
            require(found == expected, where, f"reads weights of {found}, but {name} has {expected}")


def check_facts(where: str, op: str, use: Use, facts: Mapping[str, Any], bindings: Collection[BindingEntry]) -> None:
    """Check that a kernel was made for the sizes of the step, because native code trusts them."""
    roles = {binding.role for binding in bindings}
    writes = {binding.role for binding in bindings if binding.access == "write"}
    expected = use.op.facts(use, Bound(facts, roles, writes))
    for table in tables_of(facts):
        for name in expected.keys() & table.keys():
            check_fact(where, op, table[name], plain(expected[name]))


def check_fact(where: str, op: str, actual: Any, declared: Any) -> None:
    """Check that a fact, which may be a record of facts, is what the op declares."""
    if isinstance(actual, dict) and isinstance(declared, dict) and actual.keys() == declared.keys():
        for name in actual:
            check_fact(where, op, actual[name], declared[name])
    require(actual == declared, where, f"was made for {actual!r}, but {op} has {declared!r}")


def tables_of(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A kernel's facts, and those of its parts that describe the step."""
    parts = {name: facts[name] for name in PARTS if isinstance(facts.get(name), dict)}
    return [{name: value for name, value in facts.items() if name not in parts}, *parts.values()]
