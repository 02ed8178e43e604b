"""/infill, /apply-template and /props, as editors and llama.cpp's own page use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi import ask, ask_of
from fake_models import FakeExecutor, FakeModels
from fake_source import FakeSource, text_model

from nearfar.server_fallback.executors.local import LocalExecutor

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
# What an editor sends, with its own settings.
ASKED: dict[str, Any] = {
    "input_prefix": "def f(", "input_suffix": "):\n", "prompt": "x",
    "input_extra": [{"filename": "a.py", "text": "A", "time": [1, 2]}],
    "n_predict": 64, "stop": ["zz"], "n_indent": 4, "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True, "id_slot": 0, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "stream": False,
}  # fmt: skip


@pytest.fixture
def local(tmp_path: Path) -> Iterator[tuple[Any, FakeSource]]:
    source = FakeSource(", y")
    executor: Any = LocalExecutor(source, text_model(tmp_path, markers=QWEN))
    yield executor, source
    asyncio.run(executor.close())


def test_a_gap_is_filled(local: tuple[Any, FakeSource]) -> None:
    executor, source = local
    answer = ask_of(executor, "/infill", ASKED).json()
    assert (answer["content"], answer["stop"], answer["stop_type"], answer["model"]) == (", y", True, "eos", "fake")
    timings = answer["timings"]
    assert answer["tokens_evaluated"] == len(source.requests[0].prompt_ids) == timings["cache_n"] + timings["prompt_n"]
    assert timings["cache_n"] == answer["tokens_cached"] > 0
    assert bytes(token for token in source.requests[0].prompt_ids if token < 256) == b"a.py\nA\n\ndef f():\nx"
    assert source.requests[0].sampling.temperature == 0.8
    stopped = ask_of(executor, "/infill", {**ASKED, "stop": [" y"]}).json()
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == (",", "word", " y")
    fields = {"response_fields": ["content", "timings/predicted_n", "missing"], "n_predict": 1}
    assert ask_of(executor, "/infill", ASKED | fields).json() == {"content": ",", "timings/predicted_n": 1}


def test_parts_are_streamed_and_the_end_has_the_figures(local: tuple[Any, FakeSource]) -> None:
    answer = ask_of(local[0], "/infill", {**ASKED, "stream": True})
    *lines, done = [line for line in answer.text.split("\n\n") if line]
    assert done == ": done"
    values = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(value["content"] for value in values) == ", y"
    assert [value["stop"] for value in values] == [False] * (len(values) - 1) + [True]
    assert values[-1]["tokens_predicted"] == 3


def test_errors_have_the_request_s_names(local: tuple[Any, FakeSource]) -> None:
    def told(**more: Any) -> Any:
        return ask_of(local[0], "/infill", {**ASKED, **more}).json()["error"]

    assert told(input_prefix="x" * 5000)["param"] == "input_prefix"
    assert told(grammar="x")["code"] == "unknown_parameter"


def test_one_of_several_models_must_be_named() -> None:
    models = FakeModels(loaded={"second": FakeExecutor()})
    error = ask("POST", "/infill", ASKED, models).json()["error"]
    assert error["message"] == "this server has several models; name one as 'model': fake, second"
    assert ask("POST", "/infill", {**ASKED, "model": "second"}, models).status_code == 200


def test_templates_and_properties(local: tuple[Any, FakeSource]) -> None:
    executor, _ = local
    messages = [{"role": "user", "content": "hi <s>"}]
    answer = ask_of(executor, "/apply-template", {"messages": messages})
    assert answer.json() == {"prompt": "[user]hi <s>[assistant]"}
    props = ask_of(executor, "/props", method="GET").json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert "{% for m in messages %}" in props["chat_template"]
    assert (props["model_alias"], props["modalities"]) == ("fake", {"vision": False, "audio": False})
    # As llama.cpp's page asks.
    assert ask_of(executor, "/props?model=fake&autoload=false", method="GET").json() == props
