"""The tokens that end an answer are the union of what the files of a checkpoint say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import SIZES

from nearfar.compiler.formats.checkpoint import Checkpoint
from nearfar.compiler.formats.stop_tokens import end_of_turn, with_stops
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}"
)
TOKENS = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<think>", "</think>")
FAMILIES = Path(__file__).parents[2] / "conformance" / "chat_templates"


def files(chat_template: str | None, eos_token: str | None = None, *tokens: str) -> TokenizerFiles:
    added = [
        {"id": index, "content": each, "special": "think" not in each} for index, each in enumerate((*TOKENS, *tokens))
    ]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content = {
        "version": "1.0",
        "added_tokens": [{**token, **flags} for token in added],
        "model": {"type": "BPE", "vocab": {str(token["content"]): token["id"] for token in added}, "merges": []},
    }
    return TokenizerFiles(
        Path("tokenizer.json"), json.dumps(content).encode(), chat_template, "<s>", eos_token, unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def spec() -> Any:
    from nearfar.compiler.arch import by_model_type
    from nearfar.compiler.formats.config import ConfigReader

    values = {**SIZES, "model_type": "llama", "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5}
    return by_model_type("llama").read_config(ConfigReader(values, "config.json"))


def stops(spec: Any, tokenizer: TokenizerFiles, *known: int) -> tuple[int, ...]:
    checkpoint = Checkpoint(Path("model"), replace(spec, eos_token_ids=known), {}, tokenizer)
    ends: tuple[int, ...] = with_stops(checkpoint).spec.eos_token_ids
    return ends


def test_the_eos_token_of_the_tokenizer_and_the_templates_end_of_turn_are_added(spec: Any) -> None:
    assert stops(spec, files(None), 2) == (2,)
    assert stops(spec, files(None, "<|im_end|>"), 2) == (2, 4)
    assert stops(spec, files(CHATML), 2) == (2, 4)
    assert stops(spec, files(CHATML, "</s>"), 7) == (7, 2, 4)
    assert stops(spec, files(CHATML, "<|im_end|>"), 4) == (4,)


def test_the_unknown_token_and_tokens_beyond_the_vocabulary_end_nothing(spec: Any) -> None:
    assert stops(spec, files(None, "<unk>"), 2) == (2,)
    assert stops(spec, files(None, "missing"), 2) == (2,)
    assert stops(replace(spec, vocab_size=4), files(None, "<|im_end|>"), 2) == (2,)


def test_a_token_inside_a_turn_does_not_end_it() -> None:
    # As in gpt-oss: <|im_end|> follows the reasoning too.
    channels = (
        "{% for m in messages %}<|im_start|>{% if m.thinking %}{{ m.thinking }}<|im_end|><|im_start|>{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    assert end_of_turn(files(channels)) is None
    assert end_of_turn(files(CHATML)) == "<|im_end|>"


def test_a_template_that_reads_parts_has_its_end_of_turn() -> None:
    template = (FAMILIES / "smolvlm.jinja").read_text()
    assert end_of_turn(files(template, None, "<end_of_utterance>")) == "<end_of_utterance>"


def test_a_template_without_an_end_of_turn_has_the_next_turns_marker_or_none() -> None:
    assert end_of_turn(files("{% for m in messages %}<|user|>{{ m.content }}\n{% endfor %}")) == "<|user|>"
    assert end_of_turn(files("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")) is None
    assert end_of_turn(files("{{ raise_exception('no') }}")) is None
    assert end_of_turn(files(None)) is None


def test_a_checkpoint_without_any_has_a_note_and_one_that_makes_vectors_none(spec: Any) -> None:
    checkpoint = Checkpoint(Path("model"), spec, {}, files(None))
    [note] = with_stops(checkpoint).notes
    assert "model: no token ends an answer" in note
    assert with_stops(replace(checkpoint, tokenizer=files(None, "</s>"))).notes == ()
    embedding = replace(
        checkpoint, embedding=EmbeddingSpec("mean", normalize=True, size=72), tokenizer=files(CHATML, "</s>")
    )
    assert with_stops(embedding) is embedding


@pytest.mark.parametrize(
    ("family", "token"),
    [
        ("qwen3", "<|im_end|>"), ("llama3", "<|eot_id|>"), ("gemma3", "<end_of_turn>"), ("gemma4", "<turn|>"),
        ("phi3", "<|end|>"), ("mistral_v3", "</s>"), ("mistral_v13", "</s>"), ("olmo2", "</s>"), ("glm4", "<|user|>"),
        ("granite3", "<|end_of_text|>"), ("command_r7b", "<|END_RESPONSE|>"), ("smollm3", "<|im_end|>"),
    ],
)  # fmt: skip
def test_a_familys_end_of_turn_is_found(family: str, token: str) -> None:
    tokens = [token] if token not in TOKENS else []
    assert end_of_turn(files((FAMILIES / f"{family}.jinja").read_text(), "</s>", *tokens)) == token
