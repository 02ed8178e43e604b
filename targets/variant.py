"""Variants: the ways to run a step on a target. A variant is one kernel or several; a kernel is its template and its
frozen facts.

A kernel's name depends only on its template and its facts, so equal facts mean an equal kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from nearfar.compiler.bundle.digest import digest, plain
from nearfar.compiler.bundle.entries import VariantEntry
from nearfar.compiler.ir.expr import Condition
from nearfar.compiler.ir.plan import Step
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.runtime.errors import UnsupportedModel

# A function template(name, **facts) that writes one kernel.
Template: TypeAlias = Callable[..., Kernel]


@dataclass(frozen=True)
class KernelCall:
    """A template and its facts: numbers, strings, booleans, None, and sequences, mappings or dataclasses of these.

    ``roles`` replaces roles of the template by those of the step that runs it.
    """

    template: Template
    facts: Mapping[str, Any]
    roles: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        return f"{self.template.__name__}_{digest(self.plain_facts())}"

    def plain_facts(self) -> dict[str, Any]:
        """The facts as JSON values, for the manifest."""
        roles = {"roles": dict(self.roles)} if self.roles else {}
        return {name: plain(value) for name, value in self.facts.items()} | roles

    def build(self) -> Kernel:
        built = self.template(self.name, **self.facts)
        if not self.roles:
            return built
        return replace(built, bindings=tuple(each.renamed(self.roles) for each in built.bindings))


@dataclass(frozen=True, slots=True)
class Variant:
    """``kernels`` run one after the other. ``activation`` None matches every dtype, ``when`` None every batch.

    ``needs``: features of the device, or of its shading language, or its vendor.
    """

    kernels: tuple[KernelCall, ...]
    activation: str | None = None
    when: Condition = None
    needs: tuple[str, ...] = ()

    @property
    def entry(self) -> VariantEntry:
        names, needs = [kernel.name for kernel in self.kernels], list(self.needs)
        return VariantEntry(kernels=names, activation=self.activation, needs=needs, when=self.when)  # type: ignore[arg-type]


def kernel(template: Template, **facts: Any) -> KernelCall:
    return KernelCall(template, facts)


def with_roles(call: KernelCall, **roles: str) -> KernelCall:
    """A kernel whose roles have other names in its step."""
    return replace(call, roles={**call.roles, **roles})


def for_activations(variants: Mapping[str, Sequence[Variant]]) -> tuple[Variant, ...]:
    """The variants of a step for each activation dtype in turn; those that are equal for all of them appear once, for
    any dtype.
    """
    first = next(iter(variants.values()))
    if all(each == first for each in variants.values()):
        return tuple(first)
    return tuple(replace(variant, activation=activation) for activation, each in variants.items() for variant in each)


def no_kernel(step: Step) -> UnsupportedModel:
    """The error for an op that no kernel of the target computes. The caller raises it."""
    return UnsupportedModel(
        f"the model has the op {step.op}, for which the target has no kernel; use another --target, or --runner numpy",
        op=step.op,
    )
