"""The kernel cases of the tests, with the kernels that `make gpu-prepare` lowered. Neither needs TVM.

The arrays of a case and the results of its op are computed on the machine that checks, by `compiler/ir/ops`.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .prepared import KERNELS_FILE
from .report import NotRun
from .without_tvm import allow_missing_tvm

if TYPE_CHECKING:
    from kernel_harness import Case, LoweredCase

    from nearfar.targets.cuda.source import CudaKernel

CUDA, WEBGPU = "cuda", "webgpu"
Lowered = TypeVar("Lowered")


def all_cases(target: str) -> dict[str, Case]:
    """The cases of a target by name."""
    allow_missing_tvm()
    if target == CUDA:
        from cuda_cases import cuda_cases

        found = list(cuda_cases())
    else:
        import kernel_cases
        from step_cases import step_cases

        from nearfar.targets.webgpu.variants import variants_of

        found = [*kernel_cases.all_cases(), *step_cases(variants_of, "q4f16", ("float16", "float32"))]
    by_name = {case.name: case for case in found}
    assert len(by_name) == len(found), "two cases have the same name"
    return by_name


def write_kernels(folder: Path, kernels: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
    """``kernels``: by target and by the case's name. The functions of TVM are left out."""
    plain = {
        target: {
            name: [replace(each, kernel=replace(each.kernel, function=None)) for each in lowered]
            for name, lowered in by_name.items()
        }
        for target, by_name in kernels.items()
    }
    (folder / KERNELS_FILE).write_bytes(pickle.dumps(plain))


def cuda_cases(folder: Path) -> list[tuple[Case, list[CudaKernel]]]:
    return prepared_cases(folder, CUDA)


def webgpu_cases(folder: Path) -> list[LoweredCase]:
    """Their runs are computed when the list is created."""
    return [lowered_case(case, kernels) for case, kernels in prepared_cases(folder, WEBGPU)]


def lowered_case(case: Case, kernels: Sequence[Any]) -> LoweredCase:
    from kernel_harness import LoweredCase

    scratch = {f"scratch.{name}": count for each in kernels for name, count in each.kernel.scratch.items()}
    return LoweredCase(case.name, tuple(kernels), scratch, tuple(case.runs()), case.dtype)


def kernels_file(folder: Path) -> Path:
    """Raises NotRun if it was not prepared."""
    file = folder / KERNELS_FILE
    if not file.exists():
        raise NotRun(f"{file} is missing; run make gpu-prepare")
    return file


def prepared_cases(folder: Path, target: str) -> list[tuple[Case, Any]]:
    cases = all_cases(target)
    kernels = pickle.loads(kernels_file(folder).read_bytes())[target]
    unknown = kernels.keys() - cases.keys()
    if unknown:
        raise NotRun(f"kernels of other cases were prepared ({sorted(unknown)[0]}); run make gpu-prepare on this tree")
    return [(cases[name], lowered) for name, lowered in kernels.items()]
