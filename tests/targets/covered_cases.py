"""Finds the cases of projections and attention that need not run in `make test`, and writes their names to
`covered_cases.json`: `python tests/targets/covered_cases.py`, after a change of templates or of their cases.

Such a case executes no instruction of a template's Python code, and has no option, format or dtype with a template,
that the cases left do not have as well. `case_selection.py` makes it exhaustive. A case that the file does not name
runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).parent
for path in (HERE.parent, HERE, *(HERE / target for target in ("webgpu", "cpu", "cuda"))):
    sys.path.insert(0, str(path))

from case_selection import COVERED  # noqa: E402

TEMPLATES = str(HERE.parents[1] / "compiler/kernels")
# These execute the same instructions for every template.
SHARED = ("/builder.py", "/tir.py")
# Cases of other ops are cheap, and their names are sizes that matter.
EXPENSIVE = re.compile(r"linear_|attention_|ragged_attention_")
# What a kernel costs beside its size, in instructions of its template.
KERNEL_COST = 500


@dataclass(slots=True)
class Trace:
    """The instructions that built kernels, by file, function and offset; the file of the first one; their number."""

    instructions: set[tuple[str, int, int]] = field(default_factory=set)
    template: str = ""
    count: int = 0


@dataclass(frozen=True, slots=True)
class Features:
    """What a case covers, and what it costs."""

    covered: Set[Any]
    cost: int


@contextmanager
def traced() -> Iterator[Trace]:
    """Record the instructions of templates that run inside."""
    trace = Trace()

    def instruction(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code = frame.f_code
            trace.instructions.add((code.co_filename, code.co_firstlineno, frame.f_lasti))
            trace.count += 1
        return instruction

    def call(frame: FrameType, _event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(TEMPLATES) or file.endswith(SHARED):
            return None
        trace.template = trace.template or Path(file).stem
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return instruction

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield trace
    finally:
        sys.settrace(before)


def gpu_features(cases: Iterable[Any]) -> dict[str, Features]:
    """By the name of a case for a GPU, whose words name its options and formats."""
    found = {}
    for case in cases:
        with traced() as trace:
            kernels = case.kernels()
        words = {word for word in case.name.split("_") if not re.fullmatch(r"[\dx]*", word)}
        covered = {(trace.template, each) for each in (*trace.instructions, *words, case.dtype)}
        found[case.name] = Features(covered, trace.count + KERNEL_COST * len(kernels))
    return found


def cpu_features(cases: Iterable[Any]) -> dict[str, Features]:
    """By the name of a step's case, with the kernels of all its variants at its levels."""
    traces: dict[str, Trace] = {}
    found = {}
    for case in cases:
        covered: set[Any] = {(case.op, "activation", case.activation)}
        covered |= {(case.op, role, declared[0]) for role, declared in case.inputs.items()}
        # Of a number, that it is given.
        covered |= {(case.op, attr, "" if is_number(value) else str(value)) for attr, value in case.step.attrs.items()}
        cost = 0
        for level, row in case.runnable():
            covered.add((case.op, level.name, case.quantization))
            for kernel in row.kernels:
                if kernel.name not in traces:
                    with traced() as traces[kernel.name]:
                        kernel.build()
                trace = traces[kernel.name]
                covered |= {(kernel.template, each) for each in (*trace.instructions, level.name)}
                cost += trace.count + KERNEL_COST
        found[case.name] = Features(covered, cost)
    return found


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def needless(cases: Mapping[str, Features]) -> list[str]:
    """The names of expensive cases that the others cover, found from the most expensive one down."""
    # The number of cases left that have a feature.
    left = Counter(feature for each in cases.values() for feature in each.covered)
    found = []
    for name in sorted(filter(EXPENSIVE.match, cases), key=lambda name: -cases[name].cost):
        covered = cases[name].covered
        if all(left[feature] > 1 for feature in covered):
            left.subtract(covered)
            found.append(name)
    return sorted(found)


def main() -> None:
    import cpu_cases
    import cuda_cases
    import kernel_cases

    targets: dict[str, tuple[Callable[[], Iterable[Any]], Callable[[Iterable[Any]], dict[str, Features]]]] = {
        "webgpu": (kernel_cases.all_cases, gpu_features),
        "cuda": (cuda_cases.cuda_cases, gpu_features),
        "cpu": (cpu_cases.all_cases, cpu_features),
    }
    names = {}
    for target, (cases, features) in targets.items():
        found = features(case for case in cases() if not case.exhaustive)
        names[target] = needless(found)
        cost, total = sum(found[name].cost for name in names[target]), sum(each.cost for each in found.values())
        print(f"{target}: {len(names[target])} of {len(found)} cases are covered, {cost / total:.0%} of the cost")
    COVERED.write_text(json.dumps(names, indent=1) + "\n")


if __name__ == "__main__":
    main()
