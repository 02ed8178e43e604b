"""The arguments of `vllm serve` for a model, from the files of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import write_modules

from nearfar.compiler.runtime.text.tool_formats import FORMATS
from nearfar.server_fallback.executors.vllm_arguments import (
    PARSER_OF_FORMAT,
    CheckpointFacts,
    checkpoint_facts,
    model_arguments,
    tool_parser,
)

DETAILS = "--enable-prompt-tokens-details"
AUTO = "--enable-auto-tool-choice"
HERMES = CheckpointFacts("hermes")


def test_every_format_that_we_know_has_a_parser() -> None:
    assert PARSER_OF_FORMAT.keys() == FORMATS.keys()


@pytest.mark.parametrize(
    ("template", "family", "parser"),
    [
        ("{{ tools }}<tool_call>", "qwen3", "hermes"),
        ("{{ tools }}<tool_call><function=", "qwen3_moe", "qwen3_coder"),
        ("{{ tools }}<|python_tag|>", "llama", "llama3_json"),
        ("{{ tools }}<|python_tag|>", "llama4", "llama4_pythonic"),
        ("{{ tools }}```json", "deepseek_v3", "deepseek_v3"),
        ("{{ tools }}", "deepseek_v3", "deepseek_v31"),
        ("{{ tools }}<unknown>", "qwen3", None),
        ("<tool_call>", "qwen3", None),
        (None, "gpt_oss", None),
    ],
)
def test_the_parser_is_that_of_the_template(template: str | None, family: str, parser: str | None) -> None:
    assert tool_parser(template, {"model_type": family}) == parser


@pytest.mark.parametrize(
    ("facts", "given", "added"),
    [
        (CheckpointFacts(), (), (DETAILS,)),
        (HERMES, (), (DETAILS, AUTO, "--tool-call-parser", "hermes")),
        (HERMES, ("--tool-call-parser", "pythonic"), (DETAILS, AUTO)),
        (HERMES, ("--tool_call_parser=pythonic", AUTO), (DETAILS,)),
        (HERMES, (AUTO,), (DETAILS, "--tool-call-parser", "hermes")),
        (HERMES, ("--no-enable-auto-tool-choice", "--no-enable-prompt-tokens-details"), ()),
        (CheckpointFacts(), ("--tool-call-parser", "mine", "--tool-parser-plugin", "p.py"), (DETAILS, AUTO)),
        (CheckpointFacts("hermes", embeds=True), (), (DETAILS, "--runner", "pooling")),
        (CheckpointFacts(embeds=True), ("--runner=generate",), (DETAILS,)),
    ],
)
def test_the_users_arguments_replace_ours(
    facts: CheckpointFacts, given: tuple[str, ...], added: tuple[str, ...]
) -> None:
    assert tuple(model_arguments(facts, given)) == added


def test_the_facts_are_in_the_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    assert checkpoint_facts(str(tmp_path)) == CheckpointFacts(None, embeds=False)
    (tmp_path / "chat_template.jinja").write_text("{{ tools }}<tool_call>")
    assert checkpoint_facts(str(tmp_path)) == HERMES
    write_modules(tmp_path)
    assert checkpoint_facts(str(tmp_path)) == CheckpointFacts("hermes", embeds=True)


def test_without_the_files_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: (_ for _ in ()).throw(OSError("offline")))
    assert checkpoint_facts("org/big") is None
    (tmp_path / "config.json").write_text("{")
    assert checkpoint_facts(str(tmp_path)) is None
