"""Finds the cases of projections, attention and steps' variants that need not run in `make test`, and writes their
names to `covered_cases.json`: `python tests/targets/covered_cases.py`, after a change of templates or of their cases.

Such a case executes no instruction of a template's Python code, and has no option, format or dtype with a template,
that the cases left do not have as well. What webgpu's cases left cover, cuda has once for each template and each of its
dtypes and formats alone, because both compile the same templates. A case that a mutation of `tests/mutate` names is
left. `case_selection.py` makes the others exhaustive. A case that the file does not name runs.
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
# The names of other ops' own cases are sizes that matter.
EXPENSIVE = re.compile(r"linear_|attention_|ragged_attention_")
# The graph and the number of a row, in the name of a step's case: `Case` of `step_cases.py`.
OF_STEP = re.compile(r"_(float32|float16|bfloat16|int8)_\d+$")
# Sizes, numbers such as 0p25 and 1em06, and the digests of facts.
NUMBER = re.compile(r"[\dx]*|(from)?\d+((p|em)\d+)?|(?=.*\d)[\da-f]{4}")
MUTATIONS = HERE.parent / "mutate/mutations.toml"
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
        words = {word for word in case.name.split("_") if not NUMBER.fullmatch(word)}
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


def needless(cases: Mapping[str, Features], named: Set[str], elsewhere: Set[Any] = frozenset()) -> list[str]:
    """The names of expensive cases that the others cover, found from the most expensive one down, without those
    ``named`` by mutations. ``elsewhere``: the features that another target's cases cover.
    """
    # The number of cases left that have a feature.
    left = Counter(feature for each in cases.values() for feature in each.covered)
    candidates = [name for name in cases if (EXPENSIVE.match(name) or OF_STEP.search(name)) and name not in named]
    found = []
    for name in sorted(candidates, key=lambda name: -cases[name].cost):
        covered = cases[name].covered
        if all(left[feature] > 1 or feature in elsewhere for feature in covered):
            left.subtract(covered)
            found.append(name)
    return sorted(found)


def main() -> None:
    import cpu_cases
    import cuda_cases
    import kernel_cases

    Found = Callable[[], dict[str, Features]]
    targets: dict[str, tuple[tuple[str, Found], ...]] = {
        "webgpu": (
            ("webgpu", lambda: gpu_features(usual(kernel_cases.all_cases()))),
            ("webgpu steps", lambda: gpu_features(usual(kernel_cases.webgpu_steps()))),
        ),
        "cuda": (("cuda", lambda: gpu_features(usual(cuda_cases.cuda_cases()))),),
        "cpu": (("cpu", lambda: cpu_features(usual(cpu_cases.all_cases()))),),
    }
    named = set(re.findall(r"\[(\w+)\]\"", MUTATIONS.read_text()))
    names: dict[str, list[str]] = {}
    elsewhere: set[Any] = set()
    for target, parts in targets.items():
        of_parts = {part: features() for part, features in parts}
        found = {name: each for part in of_parts.values() for name, each in part.items()}
        covered = {*needless(found, named, elsewhere if target == "cuda" else frozenset())}
        if target == "webgpu":
            # Of other targets, a template's dtypes, formats and options differ in their own code.
            left = (found[name].covered for name in found.keys() - covered)
            elsewhere = {each for of_case in left for each in of_case if isinstance(each[1], tuple)}
        for part, features in of_parts.items():
            names[part] = sorted(covered & features.keys())
        cost, total = sum(found[name].cost for name in covered), sum(each.cost for each in found.values())
        print(f"{target}: {len(covered)} of {len(found)} cases are covered, {cost / total:.0%} of the cost")
    COVERED.write_text(json.dumps(names, indent=1) + "\n")


def usual(cases: Iterable[Any]) -> Iterator[Any]:
    return (case for case in cases if not case.exhaustive)


if __name__ == "__main__":
    main()
