"""Makes a bundle that loads fast on a CPU: only one variant for each step, float32 activations, and no self-test, which
takes as long as everything else in a load.

Tests that are not about kernels need not wait until all of them are compiled. Every variant is correct at every size,
so one variant suffices. `few_kernels` does not even lower the others.

Which one is fast depends on the tokens of a step, as ``tokens`` says. "few": the variant that computes a row at a time;
the default, for answers of models. "many": the one that computes tiles of 32 rows, with which a step of one token takes
eight times as long; for encoders. "any": both, under their conditions; for the demo model with prompts of more than
about 50 tokens, which take longer than the compilation of the second variant.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from nearfar.compiler.ir.plan import Step
    from nearfar.compiler.kernels.linear_vector import VectorShape
    from nearfar.compiler.kernels.projection import Projection
    from nearfar.compiler.runtime.runner import Limits
    from nearfar.targets.cpu.levels import Arch
    from nearfar.targets.variant import Variant


Tokens = Literal["few", "many", "any"]


@contextmanager
def few_kernels(keep: Collection[str] = (), *, tokens: Tokens = "few") -> Iterator[None]:
    """Bundles for webgpu that are compiled inside contain only such variants of each step for each activation dtype,
    which run on every device, and all variants of the ops in ``keep``. Their matrix-vector kernels have few threads.
    Bundles for cpu contain the last variants.
    """
    from nearfar.targets import gpu_variants
    from nearfar.targets.cpu import lower as cpu
    from nearfar.targets.webgpu import lower as webgpu
    from nearfar.targets.webgpu import variants as webgpu_variants

    with pytest.MonkeyPatch.context() as patch:
        for module in (gpu_variants, webgpu_variants):
            patch.setattr(module, "vector_shape", few_threads)
        for target, wanted in ((webgpu, tokens), (cpu, "many")):
            variants_of: Callable[..., Sequence[Variant]] = target.variants_of

            def few(
                step: Step,
                context: Any,
                variants_of: Callable[..., Sequence[Variant]] = variants_of,
                wanted: Tokens = wanted,
            ) -> Sequence[Variant]:
                variants = variants_of(step, context)
                if step.op in keep:
                    return variants
                lists = [
                    [each for each in variants if each.activation == dtype]
                    for dtype in dict.fromkeys(each.activation for each in variants)
                ]
                return [row for rows in lists for row in of_tokens(plain_of(rows), wanted)]

            patch.setattr(target, "variants_of", few)
        yield


def few_threads(facts: Projection, min_tall_rows: int) -> VectorShape:  # noqa: ARG001
    """The workgroup of a matrix-vector kernel for SwiftShader, whose time goes to switches between threads at barriers.

    Two rows for each thread, because more rows make a kernel longer, which then takes longer to compile.
    """
    from nearfar.compiler.kernels.linear_vector import VectorShape

    return VectorShape(threads=16, lanes=8, rows=2)


def plain_of(variants: Sequence[Variant]) -> Sequence[Variant]:
    """The variants that run on every device and are correct for every batch."""
    return [each for each in variants if not each.needs and not is_structural(each.when)]


def of_tokens(variants: Sequence[Variant], tokens: Tokens) -> Sequence[Variant]:
    """Of variants that are all correct, those for such steps."""
    first, last = variants[0], variants[-1]
    always = replace(first, when=None)
    match tokens:
        case "few":
            return [always]
        case "many":
            return [last]
        case "any":
            return [last] if always == last else [first, last]


@contextmanager
def one_compilation() -> Iterator[None]:
    """Bundles for cpu that are compiled inside have kernels for the base level of instruction sets alone, and LLVM does
    not optimize them. Those for cuda have empty cubins: the emulator compiles their source.
    """
    from nearfar.targets.cpu import lower as cpu
    from nearfar.targets.cpu.levels import by_name
    from nearfar.targets.cuda import lower as cuda

    def base_of(name: str | None) -> Arch:
        arch = by_name(name)
        return replace(arch, levels=arch.levels[-1:])

    with pytest.MonkeyPatch.context() as patch:
        tvm_target = cpu.tvm_target
        patch.setattr(cpu, "by_name", base_of)
        patch.setattr(cpu, "tvm_target", lambda *level: {**tvm_target(*level), "opt-level": 0})
        patch.setattr(cuda, "compile_cubin", lambda *_: (b"\x7fELF", ""))
        yield


@contextmanager
def kernels_of_models(limits: Limits | None = None) -> Iterator[None]:
    """Used by tests that run models on every target: as inside `one_compilation`, `few_kernels`, and, for given limits,
    `kernels_for`.

    Until lavapipe has a kernel in its cache, it compiles it for 0.1 to 0.4 s, five times as long as we do, and each
    variant has tests of its own. With NEARFAR_ALL_VARIANTS, which `make test-all` sets, bundles contain all variants.
    """
    few = nullcontext() if os.environ.get("NEARFAR_ALL_VARIANTS") else few_kernels()
    with one_compilation(), nullcontext() if limits is None else kernels_for(limits), few:
        yield


@contextmanager
def kernels_for(limits: Limits) -> Iterator[None]:
    """Bundles for webgpu, cpu and cuda that are compiled inside contain only the variants that a runner with these
    limits runs on this machine or on one with more features, and the last of each step.

    The prompts of the batches must not be longer than the limit on tokens.
    """
    from nearfar.compiler.ir.expr import Condition, holds
    from nearfar.targets.cpu import lower as cpu
    from nearfar.targets.cuda import lower as cuda
    from nearfar.targets.webgpu import lower as webgpu

    batches = list(batches_within(limits))
    known: dict[str, frozenset[int]] = {}

    def matching(condition: Condition) -> frozenset[int]:
        """The numbers of the batches for which a condition is true."""
        key = json.dumps(condition)
        if key not in known:
            known[key] = frozenset(i for i, dims in enumerate(batches) if holds(condition, dims))
        return known[key]

    def that_run(rows: Sequence[Variant]) -> tuple[Variant, ...]:
        kept: set[int] = set()
        for activation in {row.activation for row in rows}:
            left = frozenset(range(len(batches)))
            for index, row in enumerate(rows):
                if row.activation in (None, activation):
                    if left & matching(row.when):
                        kept.add(index)
                    # A device may lack what a row needs.
                    left = left if row.needs else left - matching(row.when)
        return tuple(row for index, row in enumerate(rows) if index in kept or index == len(rows) - 1)

    with pytest.MonkeyPatch.context() as patch:
        for target in (webgpu, cpu, cuda):
            variants_of: Callable[..., Sequence[Variant]] = target.variants_of

            def few(*arguments: Any, variants_of: Callable[..., Sequence[Variant]] = variants_of) -> Sequence[Variant]:
                return that_run(variants_of(*arguments))

            patch.setattr(target, "variants_of", few)
        yield


def batches_within(limits: Limits) -> Iterator[dict[str, int]]:
    """The dims of every number of tokens, sequences and sampled rows, with the shortest and the longest sequences; and
    of every number of patches and features of pictures.
    """
    # No adapters, and no sampling but the greedy one.
    others = {"P": limits.pages or 1, "PW": limits.pages or 1, "N": limits.sequences, "M": 0} | dict.fromkeys(
        "GAWVIFC", 0
    )
    for tokens in range(1, limits.tokens + 1):
        for sequences in range(1, min(tokens, limits.sequences) + 1):
            for rows in {0, 1, sequences, min(tokens, limits.rows)}:
                for longest in {-(-tokens // sequences), limits.tokens}:
                    pages = sequences * -(-longest // 16)
                    dims = {"S": tokens, "B": sequences, "R": rows, "T": longest, "L": pages, "LW": pages}
                    yield dims | others | {"DR": 0}
    for count in range(1, (limits.patches or 0) + 1):
        yield (
            dict.fromkeys(("S", "B", "R", "T", "L", "LW", "DR"), 0)
            | others
            | {"V": count, "I": 1, "F": count, "C": count}
        )


def lighten(bundle: Path, *, keep: Collection[str] = (), self_test: bool = False, tokens: Tokens = "few") -> None:
    """Change the manifest of a bundle. The ops in ``keep`` retain all their variants, and with ``self_test`` it retains
    its self-test.
    """
    manifest = json.loads((bundle / "manifest.json").read_text())
    kept = {step["variants"] for plan in manifest["plans"].values() for step in plan["steps"] if step["op"] in keep}
    manifest["activations"] = [entry for entry in manifest["activations"] if entry["dtype"] == "float32"]
    if not self_test:
        manifest["self_test"] = manifest["vector_test"] = manifest["vision_test"] = None
    for name, rows in manifest["variants"].items():
        if name not in kept:
            fitting = [
                row
                for row in rows
                if row["activation"] != "float16" and not row["needs"] and not is_structural(row["when"])
            ]
            first, last = {**fitting[0], "when": None}, fitting[-1]
            chosen = {"few": [first], "many": [last], "any": [fitting[0], last] if first != last else [last]}
            manifest["variants"][name] = chosen[tokens]
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def light_copy(bundle: Path, folder: Path) -> Path:
    """A copy in the new folder that is lighter still, without the self-test."""
    shutil.copytree(bundle, folder)
    lighten(folder)
    return folder


def is_structural(condition: Any) -> bool:
    """Returns whether a row with this condition may be wrong for other inputs."""
    return "==" in json.dumps(condition)
