"""ONNX's graphs for WebGPU in onnxruntime-node, whose WebGPU provider is Dawn: the demo model gives the reference's
answers. The part needs the npm package onnxruntime-node; without it, it is not run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .dawn import WEB, find_adapter, run_node
from .prepared import DEMO_ONNX_WEBGPU, LONG_QUESTION_FILE, QUESTIONS_FILE
from .report import NotRun, Report

if TYPE_CHECKING:
    from .part import Job

SCRIPT = Path(__file__).with_suffix(".mjs")
QUESTIONS = 4


def run(job: Job, report: Report) -> None:
    if not (WEB / "node_modules/onnxruntime-node").exists():
        raise NotRun("the npm package onnxruntime-node is missing")
    adapter = find_adapter(report, any_adapter=job.rehearse)
    questions: list[dict[str, Any]] = json.loads((job.prepared / QUESTIONS_FILE).read_text())[:QUESTIONS]
    # ONNX Runtime's attention for 32 tokens at once is wrong on adapters with subgroups of 4, which SwiftShader has.
    if not job.rehearse:
        questions += json.loads((job.prepared / LONG_QUESTION_FILE).read_text())
    request = job.work / "request.json"
    request.write_text(
        json.dumps([{"prompt_ids": each["prompt_ids"], "count": len(each["token_ids"])} for each in questions])
    )
    dtypes = [dtype for dtype in DEMO_ONNX_WEBGPU if dtype != "float16" or "shader-f16" in adapter.features]
    report.add_figures(activations=dtypes, questions=len(questions))
    for dtype in dtypes:
        graph = job.prepared / DEMO_ONNX_WEBGPU[dtype] / "onnx/model.onnx"
        printed = run_node(SCRIPT, str(graph), str(request), timeout_seconds=job.limit(60))
        found = json.loads(printed.splitlines()[-1])
        report.add_figures(onnxruntime=found["onnxruntime"])
        for question, tokens in zip(questions, found["answers"], strict=True):
            if tokens != question["token_ids"]:
                report.fail(f"{dtype}, {question['question']!r}: {tokens} instead of {question['token_ids']}")
