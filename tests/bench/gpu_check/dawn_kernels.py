"""Every prepared WGSL kernel case on Dawn (Tint) against `compiler/ir/ops`, and the demo model's self-test with all of
its variants, as a browser runs it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import webgpu_cases
from .dawn import Adapter, ScriptFailed, find_adapter, node, run_tool
from .prepared import DEMO_WEBGPU, QUESTIONS_FILE
from .questions import MAX_TOKENS
from .report import Report

if TYPE_CHECKING:
    from kernel_harness import LoweredCase

    from .part import Job

# The cases of one process. If it fails, each of them gets a process of its own.
BATCH = 40
BATCH_SECONDS, CASE_SECONDS = 60.0, 20.0
# The self-test compiles every variant.
SELF_TEST_SECONDS = 90.0
# More processes would end in the same way.
MAX_SINGLE_FAILURES = 20
EXTENSIONS = {"enable f16;": "shader-f16", "enable subgroups;": "subgroups"}


def run(job: Job, report: Report) -> None:
    import ml_dtypes  # noqa: F401

    adapter = find_adapter(report, any_adapter=job.rehearse)
    cases = webgpu_cases(job.prepared)
    wanted = [case for case in cases if not missing_features(case, adapter)]
    skipped = Counter(missing for case in cases for missing in missing_features(case, adapter))
    report.add_figures(cases=len(cases), runs=sum(len(case.runs) for case in wanted), skipped_cases=dict(skipped))
    self_test(job, report)
    run_cases(wanted, job, report)


def missing_features(case: LoweredCase, adapter: Adapter) -> list[str]:
    needed = {name for line, name in EXTENSIONS.items() for kernel in case.kernels if line in kernel.text}
    return sorted(needed - adapter.features)


def run_cases(cases: Sequence[LoweredCase], job: Job, report: Report) -> None:
    passed = broken = 0
    for start in range(0, len(cases), BATCH):
        batch = cases[start : start + BATCH]
        try:
            passed += check(batch, job.work, report, job.limit(BATCH_SECONDS))
        except ScriptFailed as error:
            print(f"cases {start} to {start + len(batch) - 1}: {error}", flush=True)
            for case in batch:
                try:
                    passed += check([case], job.work, report, job.limit(CASE_SECONDS))
                except ScriptFailed as own:
                    report.fail(f"{case.name}: {own}")
                    broken += 1
                if broken == MAX_SINGLE_FAILURES:
                    report.fail(f"{broken} processes ended; the remaining cases were not run")
                    return
        report.add_figures(passed=passed)


def check(cases: Sequence[LoweredCase], work: Path, report: Report, seconds: float) -> int:
    """The number of cases that pass. Raises ScriptFailed if the process that runs them ends."""
    from kernel_harness import run_on_dawn

    try:
        outputs = run_on_dawn(cases, node(), os.environ, work, timeout_seconds=seconds)
    except (AssertionError, json.JSONDecodeError) as error:
        raise ScriptFailed(str(error)[-500:]) from error
    except subprocess.TimeoutExpired as error:
        raise ScriptFailed(f"it was stopped after {seconds:.0f} s") from error
    passed = 0
    for case in cases:
        try:
            for each, found in zip(case.runs, outputs[case.name], strict=True):
                case.check(each, found)
        except AssertionError as error:
            report.fail(f"{case.name}: {error}")
        else:
            passed += 1
    return passed


def self_test(job: Job, report: Report) -> None:
    """The demo model in the TypeScript runtime: no variant may be switched off, and the answer must be right."""
    question = json.loads((job.prepared / QUESTIONS_FILE).read_text())[0]
    tokens = ",".join(map(str, question["prompt_ids"]))
    try:
        found = run_tool(
            "run_bundle", str(job.prepared / DEMO_WEBGPU), "--tokens", tokens, "--max-tokens", str(MAX_TOKENS),
            timeout_seconds=job.limit(SELF_TEST_SECONDS),
        )  # fmt: skip
    except ScriptFailed as error:
        report.fail(f"the self-test: {error}")
        return
    report.add_figures(self_test=found["self_test"], activation=found["activation"])
    if found["self_test"]["state"] != "passed":
        report.fail(f"the self-test: {found['self_test']}")
    if found["token_ids"] != question["token_ids"]:
        report.fail(f"{question['question']!r}: {found['token_ids']} instead of {question['token_ids']}")
