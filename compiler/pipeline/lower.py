"""Lowers TIR functions with TVM to source text or object code, and returns the calling convention.

Only this file uses TVM's compiler passes, so an upgrade of TVM touches one place. Templates use only TVM's script
builder (`kernels/builder.py`). What was lowered before is in the `KernelCache`, under a key of the functions, TVM's
version and this file; what a bundle's calls of templates gave, also under one of the facts and of all our sources,
because building the functions takes longer than everything else in a compile whose kernels are known.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from time import time_ns
from typing import Any, Protocol

from ..kernels.builder import Binding, Kernel
from .kernel_cache import KernelCache

# The prefix by which TVM FFI's loader finds a library's functions.
OBJECT_PREFIX = "__tvm_ffi_"


PACKAGE = Path(__file__).parents[2]
# Templates are imported with this file.
IMPORTED_NS = time_ns()


class Call(Protocol):
    """A call of a template: its name and its facts determine the kernel that it builds."""

    @property
    def name(self) -> str: ...

    def plain_facts(self) -> Mapping[str, Any]: ...

    def build(self) -> Kernel: ...


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """The source of one kernel. ``buffers`` are roles and ``scalars`` are dims, in the order of the source's
    parameters.
    """

    source: str
    entry: str
    buffers: tuple[str, ...]
    scalars: tuple[str, ...]


def lower(kernel: Kernel, target: dict[str, Any]) -> LoweredKernel:
    """Lower a kernel for a TVM target such as ``{"kind": "webgpu", "max_num_threads": 256}``."""
    kept = json.loads(kept_for([kernel], target, lambda: json.dumps(asdict(lower_now(kernel, target))).encode()))
    return LoweredKernel(kept["source"], kept["entry"], tuple(kept["buffers"]), tuple(kept["scalars"]))


def lower_call(call: Call, target: dict[str, Any]) -> tuple[Kernel, LoweredKernel]:
    """As `lower`, of the kernel that a call builds. The kernel that is returned has no function."""

    def build_and_lower() -> bytes:
        kernel = call.build()
        return json.dumps([described(kernel), asdict(lower(kernel, target))]).encode()

    kernel, kept = json.loads(kept_for_calls([call], target, build_and_lower))
    return restored(kernel), LoweredKernel(
        kept["source"], kept["entry"], tuple(kept["buffers"]), tuple(kept["scalars"])
    )


def lower_calls_object(
    calls: Sequence[Call], target: dict[str, Any], on_call: Callable[[int], None]
) -> tuple[list[Kernel], bytes]:
    """As `lower_object`, of the kernels that calls build, which are returned without their functions. ``on_call`` gets
    the index of each call before it builds.
    """

    def build_and_lower() -> bytes:
        kernels = []
        for index, call in enumerate(calls):
            on_call(index)
            kernels.append(call.build())
        return json.dumps(list(map(described, kernels))).encode() + b"\n" + lower_object(kernels, target)

    head, _, compiled = kept_for_calls(calls, target, build_and_lower).partition(b"\n")
    return [restored(each) for each in json.loads(head)], compiled


def described(kernel: Kernel) -> dict[str, Any]:
    """A kernel as JSON, without its function."""
    return asdict(replace(kernel, function=None))


def restored(values: Mapping[str, Any]) -> Kernel:
    bindings = tuple(Binding(**each) for each in values["bindings"])
    x, y = values["grid"]
    return Kernel(**{**values, "bindings": bindings, "grid": (x, y), "scalars": tuple(values["scalars"])})


def kept_for_calls(calls: Sequence[Call], target: dict[str, Any], compile_now: Callable[[], bytes]) -> bytes:
    """The result of lowering what these calls build for a target, from the cache or lowered now."""
    facts = [json.dumps([call.name, call.plain_facts()]) for call in calls]
    return KernelCache.of_user().kept([sources_key(), json.dumps(target), *facts], compile_now)


@cache
def sources_key() -> bytes:
    """A hash of what a call's kernel depends on besides its facts: all files of the compiler and its targets, and the
    version of TVM. If a file was written after it may have been imported, the key is of this process alone: kernels of
    the old file must not be those of the new one.
    """
    import tvm

    files = [file for folder in ("compiler", "targets") for file in (PACKAGE / folder).rglob("*.[pc]*")]
    digest = sha256(f"TVM {tvm.__version__}, LLVM {tvm.target.codegen.llvm_version_major()}".encode())
    for file in sorted(file for file in files if file.suffix in (".py", ".cuh")):
        digest.update(f"{file.relative_to(PACKAGE)} ".encode() + sha256(file.read_bytes()).digest())
        if file.stat().st_mtime_ns > IMPORTED_NS:
            digest.update(os.urandom(32))
    return digest.digest()


def kept_for(kernels: Sequence[Kernel], target: dict[str, Any], compile_now: Callable[[], bytes]) -> bytes:
    """The result of lowering these kernels for a target, from the cache or lowered now."""
    import tvm

    key: list[str | bytes] = [
        f"TVM {tvm.__version__}, LLVM {tvm.target.codegen.llvm_version_major()}",
        own_source(),
        json.dumps(target),
    ]
    for kernel in kernels:
        key += [kernel.name, repr(kernel.bindings), tvm.ir.save_json(kernel.function)]
    return KernelCache.of_user().kept(key, compile_now)


@cache
def own_source() -> bytes:
    return Path(__file__).read_bytes()


def lower_now(kernel: Kernel, target: dict[str, Any]) -> LoweredKernel:
    import tvm
    from tvm import s_tir, tirx
    from tvm.tirx.build import codegen_build, split_host_device_mods

    bound = tvm.target.Target(target).with_host(tvm.target.Target("llvm"))
    passes = [
        tirx.transform.BindTarget(bound),
        # WGSL has no 64-bit integers.
        *([tirx.transform.ForceNarrowIndexToInt32()] if target["kind"] == "webgpu" else []),
        s_tir.transform.UnifyThreadBinding(),
        *loop_passes(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        # RewriteUnsafeSelect is left out: it would turn our selects into branches, but all their loads are in range.
        # ThreadSync, and StorageRewrite, which relies on it, are left out on purpose: templates insert every barrier
        # themselves, and ThreadSync refuses reads and writes of shared memory under one condition.
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
    ]
    function = with_wide_conditions(kernel.function) if target["kind"] == "cuda" else kernel.function
    module = tvm.ir.transform.Sequential(passes)(tvm.IRModule({kernel.name: function}))
    _, devices = split_host_device_mods(module)
    ((device_target, device),) = devices.items()
    # TVM's own list simplifies again, which takes a quarter of the time and only changes the order of some sums; and
    # lowers memory of warps, which templates do not use.
    device = tirx.transform.LowerIntrin()(device)
    ((variable, function),) = device.functions.items()
    source = codegen_build(device, device_target).inspect_source()
    name = str(variable.name_hint)
    buffers, scalars = arguments_of(function, kernel)
    return LoweredKernel(source, name, buffers, scalars)


def lower_object(kernels: Sequence[Kernel], target: dict[str, Any]) -> bytes:
    """Lower kernels for CPUs to one object file, for a TVM target such as ``{"kind": "llvm", "mtriple": .., "mcpu":
    ..}``.

    Each kernel becomes a function with TVM FFI's calling convention, named by `OBJECT_PREFIX` and the kernel's name.
    Its arguments are the pointers in the order of the bindings, then the scalars.
    """
    return kept_for(kernels, target, lambda: lower_object_now(kernels, target))


def lower_object_now(kernels: Sequence[Kernel], target: dict[str, Any]) -> bytes:
    import tvm
    from tvm import tirx
    from tvm.tirx.build import codegen_build

    bound = tvm.target.Target(target)
    passes = [
        tirx.transform.BindTarget(bound.with_host(bound)),
        *loop_passes(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.LowerTVMBuiltin(),
        tirx.transform.LowerIntrin(),
    ]
    module = tvm.ir.transform.Sequential(passes)(tvm.IRModule({kernel.name: kernel.function for kernel in kernels}))
    with tempfile.TemporaryDirectory(prefix="nearfar-") as folder:
        file = Path(folder) / "kernels.o"
        codegen_build(module, bound).write_to_file(str(file), "o")
        return file.read_bytes()


def loop_passes() -> list[Any]:
    """The passes that turn blocks into vectorised, unrolled and simplified loops over flat buffers, for every
    target.
    """
    from tvm import s_tir, tirx

    return [
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        # RemoveNoOp is left out: it takes an eighth of the time to lower a kernel for a GPU, and templates write
        # nothing that it would remove.
        tirx.transform.StmtSimplify(),
    ]


def with_wide_conditions(function: Any) -> Any:
    """The function with one condition per lane in each select between vectors, as TVM's CUDA code generator
    requires.
    """
    import tvm_ffi
    from tvm import tirx

    def widened(select: Any) -> Any:
        _, _, lanes = str(select.true_value.ty).partition("x")
        if not lanes or str(select.condition.ty) != "bool":
            return select
        return tirx.Select(tirx.Broadcast(select.condition, int(lanes)), select.true_value, select.false_value)

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.Select, widened)))


def arguments_of(function: Any, kernel: Kernel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The device function's parameters: the role of each pointer's buffer, and the dim of each scalar."""
    roles = {binding.parameter.replace(".", "_"): binding.role for binding in kernel.bindings}
    buffers, scalars = [], []
    for parameter in function.params:
        if "handle" in str(parameter.ty):
            buffers.append(roles[pointer_name(str(parameter.name), roles)])
        else:
            scalars.append(str(parameter.name))
    return tuple(buffers), tuple(scalars)


def pointer_name(name: str, roles: dict[str, str]) -> str:
    """The role of a pointer. TVM names the pointer of buffer "x" "x_ptr", and adds a number if that name is taken."""
    return max((role for role in roles if name.startswith(role)), key=len)
