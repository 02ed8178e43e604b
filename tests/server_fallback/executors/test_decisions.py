"""Typed questions to our own engine, beside transformers' teacher forcing of each complete answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from asgi import ask_app
from fake_models import FakeModels

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.decide import fit_calibration
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.text_model import TextModel
from nearfar.server_fallback.schema.decide import DecideRequest, DecideResponse

if TYPE_CHECKING:
    from fake_models import FakeExecutor

CONTEXT = "dim the kitchen lights to 30 percent"
# Answers that begin other answers, and some of many tokens.
QUESTIONS: Mapping[str, Any] = {
    "room": {"type": "choice", "question": "which room?", "choices": ["kitchen", "kitchen lights", "bath", "30"]},
    "lit": {"type": "yes_no", "question": "is it about lights?"},
    "level": {"type": "score", "question": "how loud?", "minimum": -1, "maximum": 11},
    "tone": {"type": "score", "question": "which tone?", "scale": ["rude", "plain", "plain and kind"]},
    "about": {"type": "labels", "question": "is it about {}?", "labels": ["lights", "doors"]},
}


@pytest.fixture(scope="module")
def bundle(plain_demo: Path) -> Path:
    return plain_demo


def decided(bundle: Path, *requests: Mapping[str, Any]) -> list[DecideResponse]:
    async def work(local: LocalExecutor) -> list[DecideResponse]:
        return [await local.decide(request_of(request), Call("1")) for request in requests]

    answers: list[DecideResponse] = on_engine(bundle, work)
    return answers


class CountingRunner(ReferenceRunner):
    """Counts the tokens of all steps."""

    tokens = 0
    last: CountingRunner

    def _run(self, plan: str, batch: Any, dims: Mapping[str, int]) -> None:
        self.tokens += dims["S"]
        CountingRunner.last = self
        super()._run(plan, batch, dims)


def on_engine(bundle: Path, work: Callable[[LocalExecutor], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        folder = open_bundle(bundle)
        runner = CountingRunner(folder, activation="float32", limits=Limits(tokens=256, sequences=16, rows=64))
        engine = TokenEngine(runner, TokenModel.of(folder.manifest))
        local = LocalExecutor(engine, TextModel.of(folder, "demo"))
        try:
            return await work(local)
        finally:
            await local.close()

    return asyncio.run(run())


def request_of(given: Mapping[str, Any]) -> DecideRequest:
    return DecideRequest.model_validate({"model": "demo", "context": CONTEXT, "questions": QUESTIONS, **given})


class Oracle:
    """The log-probability of complete answers by transformers: one forward of prompt and answer for each."""

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
        self._model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)

    def logprobs(self, text: str, answers: Sequence[str]) -> list[float]:
        asked = [{"role": "user", "content": text}]
        prompt = self._tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
        return [self._logprob(asked, len(prompt), answer) for answer in answers]

    def _logprob(self, asked: list[dict[str, str]], start: int, answer: str) -> float:
        import torch

        chat = [*asked, {"role": "assistant", "content": answer}]
        ids = self._tokenizer.apply_chat_template(chat, return_dict=False)
        with torch.no_grad():
            rows = self._model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        return float(sum(rows[index - 1, ids[index]] for index in range(start, len(ids))))


def test_probabilities_are_those_of_the_complete_answers(bundle: Path) -> None:
    (answer,) = decided(bundle, {})
    oracle, found = Oracle(), answer.decisions
    listed = "\n- ".join(("Answer with one of these only:", *QUESTIONS["room"]["choices"]))
    levels = "\n- ".join(
        ("Answer with one of these only, from the lowest to the highest:", *QUESTIONS["tone"]["scale"])
    )
    yes_no = "Answer Yes or No only."
    asked = {
        "room": [(f"which room?\n{listed}", QUESTIONS["room"]["choices"])],
        "lit": [(f"is it about lights?\n{yes_no}", ["Yes", "No"])],
        "level": [("how loud?\nAnswer with an integer from -1 to 11 only.", [str(level) for level in range(-1, 12)])],
        "tone": [(f"which tone?\n{levels}", QUESTIONS["tone"]["scale"])],
        "about": [(f"is it about {label}?\n{yes_no}", ["Yes", "No"]) for label in ("lights", "doors")],
    }
    assert list(found) == list(asked)
    for name, prompts in asked.items():
        exact = [oracle.logprobs(f"{CONTEXT}\n\n{text}", answers) for text, answers in prompts]
        for own, expected in zip(found[name].logprobs, exact, strict=True):
            np.testing.assert_allclose(own, expected, rtol=0, atol=1e-4)
        shares = [np.exp(row) / np.exp(row).sum() for row in exact]
        expected_shares = shares[0] if name != "about" else [row[0] for row in shares]
        np.testing.assert_allclose(list(found[name].probabilities.values()), expected_shares, rtol=0, atol=1e-4)
        assert found[name].mass == pytest.approx(min(np.exp(row).sum() for row in exact), rel=1e-3)
    probabilities = np.array(list(found["level"].probabilities.values()))
    assert found["level"].expectation == pytest.approx(float(probabilities @ np.arange(-1, 12)))
    assert found["level"].answer == int(probabilities.argmax()) - 1
    assert found["lit"].answer is (found["lit"].probabilities["Yes"] >= 0.5)


def test_a_context_of_messages_is_one_prompt_with_the_question(bundle: Path) -> None:
    questions = {"lit": QUESTIONS["lit"]}
    text = {"context": CONTEXT, "questions": questions}
    parts = [{"type": "text", "text": CONTEXT}]
    as_parts = {"context": None, "messages": [{"role": "user", "content": parts}], "questions": questions}
    after_answer = {
        "context": None,
        "questions": questions,
        "messages": [{"role": "user", "content": CONTEXT}, {"role": "assistant", "content": "ok"}],
    }
    first, second, third = decided(bundle, text, as_parts, after_answer)
    assert first.decisions["lit"].logprobs[0] == pytest.approx(second.decisions["lit"].logprobs[0], abs=1e-5)
    assert first.decisions["lit"].logprobs[0] != pytest.approx(third.decisions["lit"].logprobs[0], abs=1e-3)


def test_a_context_is_computed_once_for_all_questions(bundle: Path) -> None:
    context = "add one pear to the list. " * 8
    questions = {f"q{index}": {**QUESTIONS["lit"], "question": f"is it about {index}?"} for index in range(8)}

    (answer,) = decided(bundle, {"context": context, "questions": questions})
    computed = CountingRunner.last.tokens
    decided(bundle, {"context": context, "questions": {"q0": questions["q0"]}})
    alone = CountingRunner.last.tokens
    # Each other question computes its own text, its two answers, and the token that is sampled after each.
    assert answer.usage.prompt_tokens == 8 * 95
    assert computed == alone + 7 * 23


def test_too_uncertain_decisions_have_no_answer(bundle: Path) -> None:
    sure, unsure = decided(bundle, {}, {"abstain_below": 1.0})
    for name, decision in unsure.decisions.items():
        assert decision.answer is None
        assert decision.probabilities == pytest.approx(sure.decisions[name].probabilities, abs=1e-5)
    assert unsure.decisions["about"].unsure == ["lights", "doors"]
    bound = sure.decisions["lit"].confidence - 1e-4
    (at_bound,) = decided(bundle, {"abstain_below": bound})
    assert at_bound.decisions["lit"].answer is not None


def test_a_calibration_moves_probabilities_and_belongs_to_its_model_and_answers(bundle: Path) -> None:
    (plain,) = decided(bundle, {})
    example = {"decisions": plain.model_dump()["decisions"], "answers": {"lit": False, "about": ["doors"], "level": 3}}
    calibration = fit_calibration(QUESTIONS, [example] * 8, model=plain.calibration_model)
    # The served name differs by place.
    assert (plain.model, plain.calibration_model) == ("demo", "nearfar-demo")
    assert set(calibration["questions"]) == {"lit", "level", "about/lights", "about/doors"}
    (fitted,) = decided(bundle, {"calibration": calibration})
    assert fitted.decisions["lit"].probabilities["No"] > plain.decisions["lit"].probabilities["No"]
    assert fitted.decisions["lit"].answer is False
    assert fitted.decisions["about"].answer == ["doors"]
    assert fitted.decisions["room"].probabilities == pytest.approx(plain.decisions["room"].probabilities, abs=1e-5)
    scaling = calibration["questions"]["level"]
    bias = [scaling["bias"][str(level)] for level in range(-1, 12)]
    scores = np.array(plain.decisions["level"].logprobs[0]) / scaling["temperature"] + bias
    expected = np.exp(scores - scores.max())
    np.testing.assert_allclose(
        list(fitted.decisions["level"].probabilities.values()), expected / expected.sum(), atol=1e-5
    )
    others = {**QUESTIONS, "lit": {**QUESTIONS["lit"], "type": "choice", "choices": ["on", "off"]}}
    for given in ({"calibration": {**calibration, "model": "another"}}, {"questions": others}):
        with pytest.raises(RequestError) as raised:
            decided(bundle, {"calibration": calibration, **given})
        assert raised.value.details["code"] == "calibration_differs"


def test_a_calibration_is_the_least_of_its_loss() -> None:
    rng = np.random.default_rng(1)
    logprobs = rng.normal(-3, 2, (40, 3))
    right = [int(row.argmax()) if index % 3 else index % 2 for index, row in enumerate(logprobs)]
    questions = {"q": {"type": "choice", "question": "?", "choices": ["a", "b", "c"]}}
    examples = [
        {"decisions": {"q": {"logprobs": [row.tolist()]}}, "answers": {"q": "abc"[index]}}
        for row, index in zip(logprobs, right, strict=True)
    ]
    scaling = fit_calibration(questions, examples, regularization=0.7)["questions"]["q"]
    fitted = np.array([1 / scaling["temperature"], *scaling["bias"].values()])

    def loss(parameters: Any) -> float:
        scores = logprobs * parameters[0] + parameters[1:]
        likely = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        prior = 0.35 * ((parameters[0] - 1) ** 2 + (parameters[1:] ** 2).sum())
        return float(-likely[np.arange(len(right)), right].sum() + prior)

    from scipy.optimize import minimize

    np.testing.assert_allclose(fitted, minimize(loss, [1, 0, 0, 0], tol=1e-12).x, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"questions": {}}, "questions", "bad_question"),
        ({"questions": {str(n): QUESTIONS["lit"] for n in range(65)}}, "questions", "too_many_questions"),
        ({"questions": {"a": {**QUESTIONS["room"], "choices": ["x"]}}}, "questions.a.choices", "too_few_choices"),
        (
            {"questions": {"a": {**QUESTIONS["room"], "choices": ["x", "y", "x"]}}},
            "questions.a.choices[2]",
            "duplicate_choice",
        ),
        ({"questions": {"a": {**QUESTIONS["room"], "choices": ["x", " y"]}}}, "questions.a.choices[1]", "bad_choice"),
        (
            {"questions": {"a": {**QUESTIONS["room"], "choices": ["x", "y" * 401]}}},
            "questions.a.choices[1]",
            "choice_too_long",
        ),
        (
            {"questions": {"a": {**QUESTIONS["room"], "choices": [str(n) for n in range(65)]}}},
            "questions.a.choices",
            "too_many_choices",
        ),
        ({"questions": {"a": {**QUESTIONS["level"], "maximum": 900}}}, "questions.a", "too_many_choices"),
        ({"questions": {"a": {**QUESTIONS["level"], "maximum": -1}}}, "questions.a", "bad_question"),
        ({"questions": {"a": {**QUESTIONS["tone"], "minimum": 1}}}, "questions.a", "bad_question"),
        ({"questions": {"a": {**QUESTIONS["lit"], "question": " "}}}, "questions.a.question", "bad_question"),
        (
            {"questions": {"a/b": QUESTIONS["lit"], "a": {**QUESTIONS["about"], "labels": ["b"]}}},
            "questions.a",
            "bad_question",
        ),
        ({"abstain_below": None, "messages": [{"role": "user", "content": "x"}]}, "context", None),
        ({"context": "pear " * 600}, "context", "context_length_exceeded"),
        ({"questions": {"\ud800": QUESTIONS["lit"]}}, "questions", "invalid_text"),
        (
            {
                "questions": {"lit": QUESTIONS["lit"]},
                "calibration": {
                    "version": 1,
                    "questions": {"lit": {"temperature": 1e-308, "bias": {"Yes": 0.0, "No": 0.0}}},
                },
            },
            "calibration",
            "calibration_differs",
        ),
    ],
)
def test_what_has_no_decision_is_an_error_that_names_it(
    bundle: Path, given: Mapping[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(RequestError) as raised:
        decided(bundle, given)
    assert (raised.value.details.get("param"), raised.value.details.get("code")) == (param, code)


def test_the_server_answers_over_http(bundle: Path) -> None:
    body = {"model": "fake", "context": CONTEXT, "questions": {"lit": QUESTIONS["lit"]}, "abstain_below": 0.5}
    wrong = {**body, "questions": {"lit": {**QUESTIONS["lit"], "type": "maybe"}}}
    twice = {**body, "questions": {"room": {**QUESTIONS["room"], "choices": ["a", "a"]}}}

    async def work(local: LocalExecutor) -> list[Any]:
        app = create_app(FakeModels(fake=cast("FakeExecutor", local)), ApiConfig())
        encoder = create_app(FakeModels(), ApiConfig())
        own = await local.decide(request_of({"questions": body["questions"]}), Call("1"))
        answers = [await ask_app(app, "POST", "/v1/decide", each) for each in (body, wrong, twice)]
        return [own, *answers, await ask_app(encoder, "POST", "/v1/decide", body)]

    own, answer, *errors = on_engine(bundle, work)
    assert answer.status_code == 200
    found = answer.json()
    assert found["object"] == "decisions"
    assert list(found["decisions"]) == ["lit"]
    assert found["decisions"]["lit"]["logprobs"][0] == pytest.approx(own.decisions["lit"].logprobs[0], abs=1e-4)
    params = [(error.status_code, error.json()["error"]["param"]) for error in errors]
    assert params == [(400, "questions.lit"), (400, "questions.room.choices[1]"), (400, "model")]
    assert errors[1].json()["error"]["code"] == "duplicate_choice"
