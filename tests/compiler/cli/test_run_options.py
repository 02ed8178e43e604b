"""The options of `nearfar run`, and prompts from standard input."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import parsed

from nearfar.compiler.cli import main
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.runtime.errors import RequestError


def run(capsys: pytest.CaptureFixture[str], bundle: Path, *arguments: str) -> Any:
    assert main(["run", str(bundle), *arguments, "--runner", "numpy", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], bundle: Path, *arguments: str) -> str:
    assert main(["run", str(bundle), *arguments, "--runner", "numpy"]) == 2
    return " ".join(capsys.readouterr().err.split())


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_the_prompt_comes_from_a_pipe(
    arguments: tuple[str, ...], light_demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(capsys, light_demo, "what is 27 + 58?", "--max-tokens", "1")
    pipe(monkeypatch, b"what is 27 + 58?\n")
    assert run(capsys, light_demo, *arguments, "--max-tokens", "1")["prompt_token_ids"] == expected["prompt_token_ids"]


def test_an_empty_pipe_and_one_that_is_not_utf_8_are_refused(
    light_demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, b"\n")
    assert "the prompt on standard input is empty" in refused(capsys, light_demo)
    pipe(monkeypatch, b"caf\xe9")
    assert "standard input is not UTF-8 (byte 3)" in refused(capsys, light_demo)


@pytest.mark.parametrize(
    "arguments",
    ["B hi", "B --top-k 3 hi", "--top-k 3 B hi", "B --json hi", "B --top-k 3 -- hi", "B --stop x hi --stop y"],
)
def test_the_prompt_may_appear_anywhere_after_the_bundle(arguments: str) -> None:
    found = parsed("run", *arguments.split())
    assert (str(found.bundle), found.prompt) == ("B", "hi")


@pytest.mark.parametrize("arguments", ["B", "B --top-k 3", "--top-k 3 B", "--json B --stop x"])
def test_the_prompt_may_be_missing(arguments: str) -> None:
    found = parsed("run", *arguments.split())
    assert (str(found.bundle), found.prompt) == ("B", None)


def test_the_system_prompt_becomes_a_message_of_the_template(
    light_demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nearfar.compiler.bundle.folder import open_any
    from nearfar.compiler.runtime.text.tokenizer import Tokenizer

    found = run(capsys, light_demo, "hello", "--system", "be brief", "--max-tokens", "1")
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert found["prompt_token_ids"] == Tokenizer(open_any(light_demo).tokenizer_files()).encode_chat(messages)
    assert "--system needs the chat template" in refused(capsys, light_demo, "hello", "--system", "be brief", "--raw")


def test_an_answer_ends_before_a_stop_string(light_demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    complete = run(capsys, light_demo, "what is 27 + 58?")["text"]
    assert complete == "27 + 58 = 85"
    found = run(capsys, light_demo, "what is 27 + 58?", "--stop", "never", "--stop", " = ")
    assert (found["text"], found["finish_reason"]) == ("27 + 58", "stop")
    assert main(["run", str(light_demo), "what is 27 + 58?", "--runner", "numpy", "--stop", "+"]) == 0
    assert capsys.readouterr().out == "27 \n"
    assert "stop holds an empty string" in refused(capsys, light_demo, "hello", "--stop", "")


def test_top_k_and_top_p_limit_the_sampled_tokens(light_demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ("tell me something", "--max-tokens", "12")
    greedy = run(capsys, light_demo, *prompt)["token_ids"]
    hot = (*prompt, "--temperature", "50", "--seed", "3")
    assert run(capsys, light_demo, *hot)["token_ids"] != greedy
    assert run(capsys, light_demo, *hot, "--top-k", "1")["token_ids"] == greedy
    assert run(capsys, light_demo, *hot, "--top-p", "0.000001")["token_ids"] == greedy
    assert "--top-p and --top-k need --temperature above 0" in refused(capsys, light_demo, "hello", "--top-k", "3")


@pytest.mark.parametrize("invalid", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_a_sampler_refuses_top_k_and_top_p_out_of_range(invalid: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=f"{next(iter(invalid))} is"):
        Sampler(1.0, **invalid)
