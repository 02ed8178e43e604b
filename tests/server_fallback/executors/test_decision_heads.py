"""Decision models of transformers, end to end on the CPU target, beside transformers' own model, prompts and
probabilities.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi import ask_app
from light_bundle import few_kernels, one_compilation
from tiny_decisions import (
    ASKED,
    QUESTIONS,
    option_probabilities,
    their_probabilities,
    theirs,
    write_decider,
    write_judge,
)
from tiny_models import write_tokenizer

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any
from nearfar.compiler.runtime.errors import UnsupportedModel
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
# With a question, several steps of the engine and of every chunk of a kernel.
LONG = "dim the lights, é " * 13
CHAT = [{"role": "user", "content": "dim the lights"}, {"role": "assistant", "content": "Which é?"}]
# The bases of "recurrent" and "shared" need states, and pages that layers share.
FORMS = (
    ("judge", "cpu"),
    ("judge", "onnx"),
    ("recurrent", "cpu"),
    # Heads in ONNX, and recurrent layers in it, have tests of their own.
    pytest.param("recurrent", "onnx", marks=pytest.mark.exhaustive),
    *(pytest.param(form, "cpu", marks=pytest.mark.exhaustive) for form in ("decider", "saved", "shared")),
)
Bundles = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decisions")
    write_judge(folder / "judge")
    # JEV-9B's has a head that generates text beside, too.
    write_judge(folder / "recurrent", "qwen3_5_text", tie_word_embeddings=False)
    write_judge(folder / "shared", "gemma4_text")
    write_decider(folder / "decider")
    model = theirs(folder / "judge")
    model.save_pretrained(folder / "saved")
    write_tokenizer(folder / "saved")
    return folder


@pytest.fixture(scope="module")
def bundles(checkpoints: Path) -> Bundles:
    """The bundle of a form, compiled when it is first asked for."""

    @cache
    def bundle(form: str, target: str) -> Path:
        options = CompileOptions(target=target, quantization="f32", context=800)
        with one_compilation(), few_kernels():
            return compile_any(str(checkpoints / form), checkpoints / f"{form}-{target}", options).path

    return bundle


async def opened(bundle: Path) -> Any:
    small = LocalOptions(own_process=False, max_sequences=4)
    return await (await LocalOpener(small).prepare(str(bundle), None)).open()


@pytest.mark.parametrize(("form", "target"), FORMS)
def test_probabilities_are_those_of_transformers(form: str, target: str, checkpoints: Path, bundles: Bundles) -> None:
    given: list[dict[str, Any]] = [{"context": text} for text in (STATE, LONG, "")] + [{"messages": CHAT}]

    async def work() -> list[DecideResponse]:
        executor = await opened(bundles(form, target))
        try:
            assert isinstance(executor, Decides)
            asked = [{"model": "a", "questions": QUESTIONS, **each} for each in given]
            decide = (executor.decide(DecideRequest.model_validate(each), Call("1")) for each in asked)
            return list(await asyncio.gather(*decide))
        finally:
            await executor.close()

    model = theirs(checkpoints / form)
    assert open_any(bundles(form, target)).manifest.task == "decide"
    for answer, each in zip(asyncio.run(work()), given, strict=True):
        expected = their_probabilities(model, checkpoints / form, next(iter(each.values())))
        found = option_probabilities(answer.model_dump()["decisions"])
        assert found.keys() == expected.keys() == ASKED.keys()
        for name, options in expected.items():
            np.testing.assert_allclose(found[name], list(options.values()), rtol=0, atol=1e-4)
        assert [each.mass for each in answer.decisions.values()] == pytest.approx([1.0] * len(QUESTIONS))


def test_onnx_refuses_a_base_that_needs_pages_by_name(bundles: Bundles) -> None:
    with pytest.raises(UnsupportedModel, match="need pages of keys and values, which onnx bundles of embeddings"):
        bundles("shared", "onnx")


def test_what_a_decision_head_cannot_do_is_refused_by_name(bundles: Bundles) -> None:
    async def work() -> list[Any]:
        registry = Registry(LocalOpener(LocalOptions(own_process=False, max_sequences=4)))
        await registry.load(LoadRequest(model=str(bundles("judge", "cpu")), name="judge"))
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
                ("/v1/score", {"model": "judge", "text_1": "a", "text_2": "b"}),
            ]
            shown = (await ask_app(app, "POST", "/api/show", {"model": "judge"})).json()
            (listed,) = (await ask_app(app, "GET", "/api/tags")).json()["models"]
            (about,) = (await ask_app(app, "GET", "/v1/nearfar/about")).json()["models"]
            assert (shown["capabilities"], about["model"]) == (["decide"], "judge")
            # Ollama's command line prints 12 digits of it.
            assert len(listed["digest"]) == 64
            return [await ask_app(app, "POST", path, body) for path, body in calls]
        finally:
            await registry.close(0)

    answers = asyncio.run(work())
    messages = [answer.json()["error"]["message"] for answer in answers]
    assert [answer.status_code for answer in answers] == [400] * 8
    for message, part in zip(
        messages,
        (
            "questions.a has 4 answers, and this model decides questions of the type choice with at most 3",
            "messages[0] must have a role and a text",
            "maximum context length is 800",
            *["answers typed questions and does nothing else; ask it with /v1/decide"] * 5,
        ),
        strict=True,
    ):
        assert part in message


def test_the_command_decides_by_a_head(bundles: Bundles, tmp_path: Path, capsys: Any) -> None:
    questions, model = tmp_path / "questions.json", str(bundles("judge", "cpu"))
    questions.write_text(json.dumps(QUESTIONS))
    options = Decide(model=model, context=STATE, questions=questions, json=True)
    decide_command.run(options)
    found = json.loads(capsys.readouterr().out)["decisions"]
    assert found.keys() == QUESTIONS.keys()
