"""Decision models of transformers, end to end on the CPU target, beside transformers' own model, prompts and
probabilities.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import ask_app
from light_bundle import few_kernels, one_compilation
from tiny_decisions import ASKED, QUESTIONS, their_probabilities, theirs, write_decider, write_judge, write_tokenizer

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.cli import decide as decide_command
from nearfar.server_fallback.cli.options import Decide
from nearfar.server_fallback.executors.executor import Call, Decides
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.decide import DecideRequest, DecideResponse
from nearfar.server_fallback.schema.models import LoadRequest

STATE = "dim the </s> lights"
CHAT = [{"role": "user", "content": "dim the lights"}, {"role": "assistant", "content": "Which é?"}]
FORMS = ("judge", "decider", "saved")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decisions")
    write_judge(folder / "judge")
    write_decider(folder / "decider")
    model = theirs(folder / "judge")
    model.save_pretrained(folder / "saved")
    write_tokenizer(folder / "saved")
    return folder


@pytest.fixture(scope="module")
def bundles(checkpoints: Path) -> Mapping[str, Path]:
    options = CompileOptions(target="cpu", quantization="f32", context=800)
    with one_compilation(), few_kernels():
        return {
            form: compile_model(str(checkpoints / form), checkpoints / f"{form}-cpu", options).path for form in FORMS
        }


def probabilities_of(answer: DecideResponse) -> dict[str, list[float]]:
    """Those of the options in transformers' order: "false" precedes "true"."""
    found = {}
    for name, decision in answer.decisions.items():
        values = list(decision.probabilities.values())
        if decision.type == "labels":
            found |= {f"{name}/{label}": [1 - value, value] for label, value in decision.probabilities.items()}
        else:
            found[name] = values[::-1] if decision.type == "yes_no" else values
    return found


async def opened(bundle: Path) -> Any:
    small = LocalOptions(own_process=False, max_sequences=4)
    return await (await LocalOpener(small).prepare(str(bundle), None)).open()


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_are_those_of_transformers(form: str, checkpoints: Path, bundles: Mapping[str, Path]) -> None:
    given: list[dict[str, Any]] = [{"context": STATE}, {"messages": CHAT}, {"context": ""}]

    async def work() -> list[DecideResponse]:
        executor = await opened(bundles[form])
        try:
            assert isinstance(executor, Decides)
            asked = [{"model": "a", "questions": QUESTIONS, **each} for each in given]
            return [await executor.decide(DecideRequest.model_validate(each), Call("1")) for each in asked]
        finally:
            await executor.close()

    model = theirs(checkpoints / form)
    assert open_bundle(bundles[form]).manifest.task == "decide"
    for answer, each in zip(asyncio.run(work()), given, strict=True):
        expected = their_probabilities(model, checkpoints / form, next(iter(each.values())))
        found = probabilities_of(answer)
        assert found.keys() == expected.keys() == ASKED.keys()
        for name, options in expected.items():
            np.testing.assert_allclose(found[name], list(options.values()), rtol=0, atol=1e-4)
        assert [each.mass for each in answer.decisions.values()] == pytest.approx([1.0] * len(QUESTIONS))


def test_what_a_decision_head_cannot_do_is_refused_by_name(bundles: Mapping[str, Path]) -> None:
    async def work() -> list[Any]:
        registry = Registry(LocalOpener(LocalOptions(own_process=False, max_sequences=4)))
        await registry.load(LoadRequest(model=str(bundles["judge"]), name="judge"))
        try:
            app = create_app(registry, ApiConfig())
            asked = {
                "model": "judge",
                "questions": {"a": {"type": "choice", "question": "b?", "choices": list("abcd")}},
            }
            picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
            yes_no = {"a": {"type": "yes_no", "question": "b?"}}
            calls = [
                ("/v1/decide", {**asked, "context": "c"}),
                ("/v1/decide", {**asked, "questions": yes_no, "messages": [picture]}),
                ("/v1/decide", {**asked, "questions": yes_no, "context": "c" * 900}),
                ("/v1/classify", {"model": "judge", "input": "a"}),
                ("/v1/rerank", {"model": "judge", "query": "a", "documents": ["b"]}),
                ("/v1/chat/completions", {"model": "judge", "messages": [{"role": "user", "content": "a"}]}),
                ("/v1/embeddings", {"model": "judge", "input": "a"}),
            ]
            return [await ask_app(app, "POST", path, body) for path, body in calls]
        finally:
            await registry.close(0)

    answers = asyncio.run(work())
    messages = [answer.json()["error"]["message"] for answer in answers]
    assert [answer.status_code for answer in answers] == [400] * 7
    for message, part in zip(
        messages,
        (
            "questions.a has 4 answers, and this model decides questions of the type choice with at most 3",
            "messages[0] must have a role and a text",
            "maximum context length is 800",
            "answers typed questions and has no classes",
            "does not score pairs",
            "generates no text",
            "makes no embeddings",
        ),
        strict=True,
    ):
        assert part in message


def test_the_command_decides_by_a_head(bundles: Mapping[str, Path], tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "questions.json").write_text(json.dumps(QUESTIONS))
    options = Decide(model=str(bundles["saved"]), context=STATE, questions=tmp_path / "questions.json", json=True)
    decide_command.run(options)
    found = json.loads(capsys.readouterr().out)["decisions"]
    assert found.keys() == QUESTIONS.keys()
