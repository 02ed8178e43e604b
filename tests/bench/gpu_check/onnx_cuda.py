"""ONNX's graph for CUDA in ONNX Runtime, on the demo model: the reference's answers. It needs onnxruntime-gpu, which is
too large to travel; without it the part is not run. A rehearsal runs the same graph on ONNX Runtime's CPU provider.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .prepared import DEMO_ONNX_CUDA, LONG_QUESTION_FILE, QUESTIONS_FILE
from .report import NotRun, Report

if TYPE_CHECKING:
    from .part import Job

PROVIDER, REHEARSED_PROVIDER = "CUDAExecutionProvider", "CPUExecutionProvider"
# Each question is one sequence, token by token.
QUESTIONS = 8


def run(job: Job, report: Report) -> None:
    import onnxruntime
    from onnx_session import Session

    available = onnxruntime.get_available_providers()
    provider = REHEARSED_PROVIDER if job.rehearse else PROVIDER
    if provider not in available:
        raise NotRun(f"the installed onnxruntime {onnxruntime.__version__} has only {', '.join(available)}")
    questions = json.loads((job.prepared / QUESTIONS_FILE).read_text())[:QUESTIONS]
    questions += json.loads((job.prepared / LONG_QUESTION_FILE).read_text())
    report.add_figures(onnxruntime=onnxruntime.__version__, provider=provider, questions=len(questions))
    for question in questions:
        session = Session(job.prepared / DEMO_ONNX_CUDA, (provider,))
        # ONNX Runtime silently falls back to the CPU if the provider cannot start.
        if provider not in session.session.get_providers():
            report.fail(f"ONNX Runtime did not start its {provider}; see the log")
            return
        found = session.greedy(question["prompt_ids"], len(question["token_ids"]))
        if found != question["token_ids"]:
            report.fail(f"{question['question']!r}: {found} instead of {question['token_ids']}")
