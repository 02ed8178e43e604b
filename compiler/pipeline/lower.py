"""Lowers TIR functions with TVM to source text or object code, and returns the calling convention.

Only this file uses TVM's compiler passes, so an upgrade of TVM touches one place. Templates use only TVM's script
builder (`kernels/builder.py`). What was lowered before is in the `KernelCache`, under a key of the functions, TVM's
version and this file.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..kernels.builder import Kernel
from .kernel_cache import KernelCache

# The prefix by which TVM FFI's loader finds a library's functions.
OBJECT_PREFIX = "__tvm_ffi_"


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
    device = s_tir.pipeline.finalize_device_passes()(device)
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
