"""`nearfar serve --executor vllm` with vLLM itself: HTTP, tools, structured output, embeddings and a crash.

`make test-vllm` runs these tests with the vLLM on the PATH. They are skipped if there is none, or if it cannot be
imported. The model is the demo model with a chat template that supports tools; a regular expression makes it write
texts that it would not write otherwise. tests/README.md lists the versions with which they have passed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from structured_answers import ANSWER, CITY, ENDED, QUESTION, STRUCTURES, require_structure, text_of
from tiny_models import make_embedding_checkpoint

from nearfar.compiler.demo import CHECKPOINT

pytestmark = [pytest.mark.vllm, pytest.mark.exhaustive]

MODEL = "ours"
WITH_TOOLS = "{% if tools %}{{ '<system>' + (tools | tojson)[:40] + ' <tool_call>' + '<end>' }}{% endif %}"
FUNCTION = {"name": "weather", "parameters": CITY}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
# As in OpenAI's API, arguments follow their schema only if the function is strict.
STRICT: Any = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
START_SECONDS, RESTART_SECONDS = 240.0, 240.0
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class Served:
    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)


def require_vllm() -> None:
    program = shutil.which("vllm")
    if program is None:
        pytest.skip("vllm is not on the PATH")
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"vllm cannot be imported: {done.stderr.strip().splitlines()[-1:]}")


@contextmanager
def serving(folder: Path, log: Path, *arguments: str) -> Iterator[Served]:
    port = free_port()
    command = [
        sys.executable, "-m", "nearfar.compiler.cli", "serve", str(folder), "--alias", f"{MODEL}={folder}",
        "--executor", "vllm", "--port", str(port), *arguments,
    ]  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **ENVIRONMENT})
    served = Served(f"http://127.0.0.1:{port}", process, log)
    try:
        until_ready(served, START_SECONDS)
        yield served
    finally:
        process.terminate()
        process.wait(60)


def until_ready(served: Served, seconds: float) -> None:
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up and served.process.poll() is None:
        try:
            if httpx.get(f"{served.url}/health/ready").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    pytest.fail(f"not ready; its log:\n{served.log.read_text(errors='replace')[-4000:]}")


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    require_vllm()
    folder = tmp_path_factory.mktemp("vllm") / "tools"
    shutil.copytree(CHECKPOINT, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    bos = "{{ bos_token }}"
    assert config["chat_template"].startswith(bos)
    config["chat_template"] = bos + WITH_TOOLS + config["chat_template"].removeprefix(bos)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with serving(folder, folder.parent / "log", "--vllm-arguments=--enforce-eager") as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with served.client as client:
        yield client


def ask(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, **{"messages": QUESTION, "temperature": 0, **more})


def test_our_arguments_are_accepted_and_found_in_the_models_files(served: Served) -> None:
    log = served.log.read_text(errors="replace")
    assert re.search(r"vLLM\S* .*version 0\.\d+|version (0\.\d+)", log)
    assert "'enable_auto_tool_choice': True" in log
    assert "'tool_call_parser': 'hermes'" in log
    assert "'enable_prompt_tokens_details': True" in log


def test_a_chat_is_the_same_complete_and_streamed(client: openai.OpenAI) -> None:
    whole = ask(client)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (ANSWER, "stop")
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert {chunk.model for chunk in chunks} == {whole.model}
    assert chunks[-1].usage == whole.usage
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "spell the word tree. " * 30}]
    usages = [ask(client, messages=long, max_tokens=2).usage for _ in range(2)]
    assert usages[1].prompt_tokens_details.cached_tokens >= 128


def test_parameters_reach_it(client: openai.OpenAI) -> None:
    several = ask(client, n=2, temperature=0.5, seed=3, top_p=0.9, extra_body={"top_k": 5, "min_p": 0.05})
    assert [choice.index for choice in several.choices] == [0, 1]
    assert ask(client, stop=" ").choices[0].message.content == "27"
    cut = ask(client, max_tokens=3)
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)
    # The answer has no end token, so it reaches the limit.
    endless = ask(client, max_tokens=40, extra_body={"ignore_eos": True})
    assert endless.usage.completion_tokens == 40
    listed = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert ("".join(each.token for each in listed), {len(each.top_logprobs) for each in listed}) == (ENDED, {2})
    streamed = list(ask(client, logprobs=True, stream=True))
    tokens = [each.token for chunk in streamed for choice in chunk.choices if choice.logprobs
              for each in choice.logprobs.content or ()]  # fmt: skip
    assert "".join(tokens) == ENDED
    ids = client.post("/../tokenize", body={"model": MODEL, "prompt": "9"}, cast_to=httpx.Response).json()["tokens"]
    biased = ask(client, max_tokens=4, logit_bias={str(ids[-1]): 100})
    assert biased.choices[0].message.content == "9999"


def test_texts_are_completed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=["once", "twice"], max_tokens=4, temperature=0, logprobs=1)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert all(choice.logprobs and len(choice.logprobs.tokens or ()) == 4 for choice in whole.choices)
    chunks = client.completions.create(model=MODEL, prompt="once", max_tokens=4, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    echo = client.completions.create(model=MODEL, prompt="once", max_tokens=2, temperature=0, echo=True)
    assert echo.choices[0].text.startswith("once")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("extra", "pattern"), STRUCTURES)
def test_answers_have_the_requested_structure(
    client: openai.OpenAI, extra: dict[str, Any], pattern: str, stream: bool
) -> None:
    require_structure(text_of(ask(client, max_tokens=60, stream=stream, **extra)), pattern)


def call_of(client: openai.OpenAI, stream: bool, **more: Any) -> tuple[Any, str]:
    """The function of the answer's only call, and the finish reason."""
    options = {"model": MODEL, "messages": QUESTION, "temperature": 0, "tools": TOOLS, "max_tokens": 160, **more}
    if stream:
        with client.chat.completions.stream(**options) as answer:
            choice: Any = answer.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**options).choices[0]
    assert len(choice.message.tool_calls) == 1
    return choice.message.tool_calls[0].function, choice.finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_the_model_writes_are_read(client: openai.OpenAI, stream: bool) -> None:
    call = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "[A-Z][a-z]{2,6}"\}\}\n</tool_call>'
    function, end = call_of(client, stream, extra_body={"structured_outputs": {"regex": call}})
    assert (function.name, end) == ("weather", "tool_calls")
    assert re.fullmatch("[A-Z][a-z]{2,6}", json.loads(function.arguments)["city"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_calls_can_be_required(client: openai.OpenAI, stream: bool, choice: Any) -> None:
    # In JSON, an untrained model may write spaces until its limit.
    vocabulary = json.loads((CHECKPOINT / "tokenizer.json").read_text())["model"]["vocab"]
    spaces = {
        str(index): -100 for text, index in vocabulary.items() if not text.strip(" \n\t\r\u0120\u010a\u0109\u010d")
    }
    function, _ = call_of(client, stream, tools=STRICT, tool_choice=choice, logit_bias=spaces)
    assert function.name == "weather"
    assert re.fullmatch("[A-Z][a-z]{2,6}", json.loads(function.arguments)["city"])


def test_requests_that_it_cannot_answer_are_400s_with_its_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"maximum context length|longer than"):
        ask(client, messages=[{"role": "user", "content": "a b c " * 2000}])
    with pytest.raises(openai.BadRequestError):
        ask(client, extra_body={"structured_outputs": {"regex": "("}})
    with pytest.raises(openai.BadRequestError, match="generates text and makes no embeddings"):
        client.embeddings.create(model=MODEL, input="a")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=QUESTION)


def test_a_client_that_leaves_frees_its_slot(served: Served, client: openai.OpenAI) -> None:
    stream = ask(client, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    give_up = time.monotonic() + 10
    while '\nvllm:num_requests_running{model_name="tools"} 0.0\n' not in httpx.get(f"{served.url}/metrics").text:
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_model_of_embeddings_embeds_and_refuses_chats(tmp_path: Path) -> None:
    require_vllm()
    folder = tmp_path / "embeds"
    # vLLM's attention on CPUs supports only multiples of 32.
    make_embedding_checkpoint(folder, head_dim=32)
    arguments = ("--vllm-arguments", "--enforce-eager --max-model-len 64")
    with serving(folder, tmp_path / "log", *arguments) as running, running.client as client:
        found = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float").data
        assert [len(each.embedding) for each in found] == [72, 72]
        assert sum(x * x for x in found[0].embedding) == pytest.approx(1, abs=1e-3)
        assert found[0].embedding != found[1].embedding
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="makes embeddings and generates no text"):
                ask(client, stream=stream)


def test_its_crash_is_a_503_and_the_next_one_answers(served: Served, client: openai.OpenAI) -> None:
    """This test must be the last: it ends vLLM's engine, and vLLM's own process ends with it."""
    engine = next(pid for pid in descendants(served.process.pid) if "EngineCore" in name_of(pid))
    stream = ask(client, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    next(iter(stream))
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(openai.APIError):
        list(stream)
    with pytest.raises(openai.InternalServerError) as raised:
        ask(client)
    assert raised.value.status_code == 503
    until_ready(served, RESTART_SECONDS)
    assert ask(client).choices[0].message.content == ANSWER


def descendants(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from descendants(int(child))


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
