"""`nearfar serve --executor upstream --dialect sglang` before a real SGLang that serves the demo model, at the address
in NEARFAR_SGLANG. tests/README.md says how to start one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from served_demo import Served, start
from structured_answers import ANSWER, ENDED, QUESTION, STRUCTURES, require_structure, text_of

pytestmark = pytest.mark.exhaustive

SGLANG = os.environ.get("NEARFAR_SGLANG")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    if SGLANG is None:
        pytest.skip("NEARFAR_SGLANG is not set: no address of an SGLang that serves the demo model")
    upstream = ("--executor", "upstream", "--upstream", SGLANG, "--dialect", "sglang")
    server = start(*upstream, folder=tmp_path_factory.mktemp("sglang"), env={})()
    yield server
    server.end()


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client: openai.OpenAI, **more: Any) -> Any:
    (model,) = client.models.list().data
    given = {"messages": QUESTION, "temperature": 0, "max_tokens": 60, **more}
    return client.chat.completions.create(model=model.id, **given)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_answered(client: openai.OpenAI, stream: bool) -> None:
    assert text_of(ask(client, stream=stream)) == ANSWER


def test_parameters_reach_it(client: openai.OpenAI) -> None:
    several = ask(client, n=2, temperature=0.5, seed=3, top_p=0.9, extra_body={"top_k": 5, "min_p": 0.05})
    assert [choice.index for choice in several.choices] == [0, 1]
    assert text_of(ask(client, stop=" ")) == "27"
    cut = ask(client, max_tokens=3)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)
    assert ask(client, max_tokens=40, extra_body={"ignore_eos": True}).usage.completion_tokens == 40
    listed = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(each.token for each in listed) == ENDED
    assert {len(each.top_logprobs) for each in listed} == {2}
    body = {"model": several.model, "prompt": "9"}
    ids = client.post("/../tokenize", body=body, cast_to=httpx.Response).json()["tokens"]
    assert text_of(ask(client, max_tokens=4, logit_bias={str(ids[-1]): 100})) == "9999"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("extra", "pattern"), STRUCTURES)
def test_answers_have_the_requested_structure(
    client: openai.OpenAI, extra: dict[str, Any], pattern: str, stream: bool
) -> None:
    require_structure(text_of(ask(client, stream=stream, **extra)), pattern)


def test_texts_are_completed_and_other_apis_answer(served: Served, client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    whole = client.completions.create(model=model.id, prompt=["once", "twice"], max_tokens=4, temperature=0)
    assert [choice.index for choice in whole.choices] == [0, 1]
    echo = client.completions.create(model=model.id, prompt="once", max_tokens=2, temperature=0, echo=True)
    assert echo.choices[0].text.startswith("once")
    assert client.responses.create(model=model.id, input=QUESTION, temperature=0).output_text == ANSWER
    body = {"model": model.id, "messages": QUESTION, "stream": False, "options": {"temperature": 0}}
    assert httpx.post(f"{served.url}/api/chat", json=body, timeout=120).json()["message"]["content"] == ANSWER


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"messages": [{"role": "user", "content": "a b c " * 2000}]}, "longer than"),
        ({"extra_body": {"structured_outputs": {"regex": "("}}}, "regex"),
        ({"extra_body": {"prompt_logprobs": 1}}, "SGLang has none"),
    ],
)
def test_requests_that_it_cannot_answer_are_400s_with_its_reason(
    client: openai.OpenAI, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=says):
        ask(client, **asked)
