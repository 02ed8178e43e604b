"""nearfar decide: answer typed questions about a text, or fit a calibration to examples with right answers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from rich.markup import escape
from rich.table import Table

from nearfar.compiler.cli.output import new_console, print_json
from nearfar.compiler.cli.phases import progress_bars
from nearfar.compiler.cli.run import piped_text
from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.runtime.given_file import read_given
from nearfar.compiler.shared.script import SharedScript

from ..executors.decide import fit_calibration, questions_of
from ..executors.executor import Call, Decides
from ..executors.local_opener import LocalOpener
from ..executors.local_options import LocalOptions
from ..router.fitting.prompts import JsonLine, parse
from ..router.fitting.reliability import calibration_error
from ..schema.decide import DecidedAnswer, DecideRequest, DecideResponse, DecisionCalibration, Question
from .announcement import Announcement
from .options import Decide
from .router import open_output, require_writable

# Examples are fitted on the other folds than those in which they are counted.
FOLDS = 5
Truth = bool | int | str | list[str]


class Example(JsonLine):
    """A text, and the right answers to some of the questions about it."""

    context: str
    answers: dict[str, Truth]


def run(options: Decide) -> None:
    """Raises RequestError, OutputError, and the errors of opening a model and of its engine."""
    questions = read_json(options.questions, TypeAdapter(dict[str, Question]), "questions")
    if options.fit is None or options.output is None:
        if options.fit is not options.output:
            raise RequestError("--fit and -o belong together: --fit examples.jsonl -o calibration.json")
        calibration = None
        if options.calibration is not None:
            what = "a calibration of nearfar decide --fit"
            calibration = read_json(options.calibration, TypeAdapter(DecisionCalibration), what)
        asked = DecideRequest(
            model=options.model,
            questions=questions,
            context=read_context(options),
            calibration=calibration,
            abstain_below=options.abstain_below,
        )
        (answer,) = asyncio.run(decide_all(options, [asked]))
        show(answer, as_json=options.json)
        return
    if options.context is not None or options.calibration is not None or options.abstain_below is not None:
        raise RequestError("--fit reads its texts from a file; leave out the text, --calibration and --abstain-below")
    examples = Example.read(options.fit)
    if not examples:
        raise RequestError(
            f'{options.fit}: has no example; write lines such as {{"context": "...", "answers": {{"urgent": true}}}}'
        )
    write_fit(options, options.output, questions, examples)


def read_context(options: Decide) -> str:
    if options.context is None and sys.stdin.isatty():
        raise RequestError("pass the text that the questions are about, as an argument or through a pipe")
    is_piped = options.context in (None, "-")
    text = piped_text() if is_piped else options.context
    if not text:
        where = "the text on standard input" if is_piped else "the text"
        raise RequestError(f"{where} is empty; pass a text as an argument or through a pipe")
    return text


def read_json(path: Path, kind: TypeAdapter[Any], what: str) -> Any:
    try:
        data = read_given(path)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {reason_of(error)}; give a JSON file with {what}") from error
    return parse(kind.validate_json, data, str(path), whole="the file", advice=f"; it must have {what}")


async def decide_all(options: Decide, requests: Sequence[DecideRequest]) -> list[DecideResponse]:
    announcement = Announcement()
    with announcement.loading():
        opener = LocalOpener(LocalOptions(trust=options.trust), announcement.progress)
        executor = await (await opener.prepare(options.model, None)).open()
    try:
        if not isinstance(executor, Decides):
            raise RequestError(f"{options.model}: generates no text; use a model that does")
        answers = []
        with progress_bars(quiet=options.json or len(requests) == 1) as bars:
            bars.start()
            task = bars.add_task("examples", total=len(requests))
            for index, request in enumerate(requests):
                answers.append(await executor.decide(request, Call(str(index))))
                bars.advance(task)
        return answers
    finally:
        await executor.close()


def show(answer: DecideResponse, *, as_json: bool) -> None:
    if as_json:
        print_json(answer.model_dump())
        return
    table = Table(box=None, pad_edge=False)
    for column in ("question", "answer", "probability", "of the answers"):
        table.add_column(column)
    for name, decision in answer.decisions.items():
        likely = sorted(decision.probabilities.items(), key=lambda each: -each[1])
        of_all = ", ".join(f"{key} {chance:.2f}" for key, chance in likely)
        table.add_row(escape(name), escape(words_of(decision)), f"{decision.confidence:.2f}", escape(of_all))
    new_console().print(table)


def words_of(decision: DecidedAnswer) -> str:
    answer = decision.answer
    if answer is None:
        return "unsure"
    if isinstance(answer, bool):
        return "yes" if answer else "no"
    return (", ".join(answer) or "none") if isinstance(answer, list) else str(answer)


# --- fit ---


def write_fit(options: Decide, output: Path, questions: dict[str, Question], examples: Sequence[Example]) -> None:
    requests = [
        DecideRequest(model=options.model, questions=questions, context=example.context) for example in examples
    ]
    require_writable(output)
    answers = asyncio.run(decide_all(options, requests))
    asked = questions_of(requests[0])
    decided = [
        {"decisions": answer.model_dump()["decisions"], "answers": example.answers}
        for answer, example in zip(answers, examples, strict=True)
    ]
    calibration = fit_calibration(asked, decided, model=answers[0].calibration_model)
    with open_output(output) as file:
        file.write(json.dumps(calibration, ensure_ascii=False, indent=1) + "\n")
    figures = {name: figures_of(name, asked[name], decided) for name in asked}
    if options.json:
        print_json({"output": str(output), "model": calibration["model"], "questions": figures})
        return
    table = Table(box=None, pad_edge=False)
    for column in ("question", "examples", "right", "calibration error", "fitted: right", "calibration error"):
        table.add_column(column, justify="left" if column == "question" else "right")
    for name, found in figures.items():
        columns = [column for kind in ("before", "after") for column in columns_of(found[kind])]
        table.add_row(escape(name), str(found["examples"]), *columns)
    new_console().print(table)
    print(f"wrote {output}, fitted to all examples of the model {calibration['model']}")
    print("the columns of fitted: to four fifths of the examples, counted in the others (cross-validation)")


def figures_of(name: str, question: Mapping[str, Any], decided: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many examples have an answer to a question, and how good its decisions are without a calibration and with
    one that was fitted to the other folds; null for fewer than two examples.
    """
    own = [
        {
            "decisions": {name: example["decisions"][name]},
            "answers": {name: example["answers"][name]},
        }
        for example in decided
        if name in example["answers"]
    ]
    folds = [own[fold::FOLDS] for fold in range(min(FOLDS, len(own)))]
    before = [row for each in own for row in outcomes(name, question, each, None)]
    after = [
        row
        for fold, held_out in enumerate(folds)
        if len(folds) > 1
        for calibration in [
            fit_calibration(
                {name: question}, [each for other, part in enumerate(folds) if other != fold for each in part]
            )
        ]
        for each in held_out
        for row in outcomes(name, question, each, calibration)
    ]
    return {"examples": len(own), "before": quality_of(before), "after": quality_of(after)}


def outcomes(
    name: str, question: Mapping[str, Any], example: Mapping[str, Any], calibration: Mapping[str, Any] | None
) -> list[tuple[float, bool]]:
    """The confidence of an answer, and whether it is right; of a question of labels, of each label."""
    logprobs, truth = example["decisions"][name]["logprobs"], example["answers"][name]
    reading = {"calibration": calibration}
    read = SharedScript.of_thread().ask("readDecisions", {name: question}, logprobs, reading)[name]
    if question["type"] != "labels":
        return [(read["confidence"], read["answer"] == truth)]
    return [
        (max(chance, 1 - chance), (chance >= 0.5) == (label in truth))
        for label, chance in read["probabilities"].items()
    ]


def quality_of(rows: Sequence[tuple[float, bool]]) -> dict[str, float] | None:
    if not rows:
        return None
    confidence, right = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    return {"right": float(right.mean()), "calibration_error": calibration_error(confidence, right)}


def columns_of(quality: Mapping[str, float] | None) -> tuple[str, str]:
    return ("-", "-") if quality is None else (f"{quality['right']:.1%}", f"{quality['calibration_error']:.3f}")
