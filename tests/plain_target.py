"""A target without kernels: its bundles compile at once, and the reference runner runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nearfar.compiler.bundle.entries import ActivationEntry
from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.kv_format import KV_FORMATS, KvName
from nearfar.compiler.ir.plan import Plan
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.pipeline.target import LoweredPlan
from nearfar.compiler.quant import Quantization


class PlainTarget:
    """Implements `Target`. ``in_float32``: bundles offer no other activations."""

    def __init__(self, *, in_float32: bool = True) -> None:
        self.in_float32 = in_float32

    MAX_BINDING_BYTES = 1 << 30
    EXTRA_ACTIVATIONS: tuple[str, ...] = ()
    HOST_TABLES = True
    UNIT_SCALES = False
    LAYOUT = "rows"
    KV_FORMATS = tuple(KV_FORMATS)

    def lower_plan(
        self,
        plan: Plan,
        quantization: Quantization,  # noqa: ARG002
        activations: tuple[str, ...],
        arch: str | None,  # noqa: ARG002
        progress: Callable[[int, int], None],  # noqa: ARG002
    ) -> LoweredPlan:
        offered = ("float32",) if self.in_float32 else activations
        entries = tuple(ActivationEntry(dtype=dtype, needs=[]) for dtype in offered)  # type: ignore[arg-type]
        lists = tuple(f"{step.op}_none" for step in plan.steps)
        return LoweredPlan(None, {}, entries, {}, dict.fromkeys(lists, ()), {}, lists)


@contextmanager
def without_kernels(*, in_float32: bool = True) -> Iterator[None]:
    """Bundles that are compiled inside, for whatever target, have no kernels."""
    with pytest.MonkeyPatch.context() as patch:
        target = PlainTarget(in_float32=in_float32)
        patch.setattr("nearfar.compiler.pipeline.compile.load_target", lambda _: target)
        yield


def compile_plain(
    model: Path,
    output: Path,
    quantization: str | None,
    context: int,
    *,
    self_test: bool = False,
    lora_rank: int = 0,
    kv: KvName = "activation",
    adapter: str | None = None,
    assistant: Path | None = None,
    prefix: tuple[Path, ...] = (),
) -> Bundle:
    options = CompileOptions(
        quantization=quantization,
        context=context,
        self_test=self_test,
        lora_rank=lora_rank,
        kv=kv,
        adapter=adapter,
        assistant=None if assistant is None else str(assistant),
        prefix=prefix,
    )
    with without_kernels():
        return compile_model(str(model), output, options)
