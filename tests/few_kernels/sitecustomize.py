"""With this folder in PYTHONPATH, Python imports this file when it starts. Bundles for webgpu and cpu that the
process compiles have few kernels, for cpu for one level of instruction sets, as inside `few_kernels` and
`one_compilation`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

LOWERINGS = ("nearfar.targets.cpu.lower", "nearfar.targets.webgpu.lower")


class WithFewKernels(MetaPathFinder):
    """Changes these modules when one of them is imported, so that other processes import neither it nor pytest."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in LOWERINGS:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            sys.path.append(str(Path(__file__).parents[1]))
            from light_bundle import few_kernels, one_compilation

            for context in (few_kernels(), one_compilation()):
                context.__enter__()
                kept.append(context)

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


# A context ends when nothing refers to it.
kept: list[object] = []
sys.meta_path.insert(0, WithFewKernels())
