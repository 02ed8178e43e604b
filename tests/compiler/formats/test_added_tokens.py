"""Tokens that files beside tokenizer.json declare: AutoTokenizer is the oracle of their ids and of encodings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from nearfar.compiler.formats.tokenizer_files import read_tokenizer_files
from nearfar.compiler.runtime.errors import CheckpointError
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles

WORDS = ("<s>", "</s>", "<unk>", "hello", "world", "sky", "blue")
CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
TEXT = "hello <x> world<y><z> <img> <m> <pp><p>other blue <c> <s> sky"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    backend = Backend(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "config", {"model_type": "llama"})
    write(tmp_path, "tokenizer_config", CONFIG)
    return tmp_path


def write(folder: Path, name: str, value: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps(value))


def entry(content: str, **flags: bool) -> dict[str, Any]:
    return {
        "content": content,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
        **flags,
    }


CASES: dict[str, dict[str, Any]] = {
    "added_tokens_decoder": {
        "config": {"added_tokens_decoder": {"7": entry("<x>"), "8": entry("<y>", special=False, lstrip=True)}}
    },
    "a word of the vocabulary": {
        "config": {"added_tokens_decoder": {"3": entry("hello", special=False), "7": entry("<x>")}}
    },
    "added_tokens.json": {"added_tokens": {"<x>": 7, "<y>": 8}},
    "special_tokens_map.json": {
        "special_tokens_map": {"additional_special_tokens": ["<x>", "<y>"], "pad_token": "<p>"}
    },
    "the map replaces the config": {"special_tokens_map": {"bos_token": {"content": "other", "lstrip": True}}},
    "no map beside the decoder": {"config": {"added_tokens_decoder": {}}, "special_tokens_map": {"bos_token": "other"}},
    "additional_special_tokens": {
        "config": {"additional_special_tokens": ["<x>"], "image_token": "<img>", "mask_token": "<m>"}
    },
    "extra_special_tokens by name": {"config": {"extra_special_tokens": {"audio_token": "<x>"}}},
    "all": {
        "config": {"extra_special_tokens": ["<x>"], "pad_token": "<pp>"},
        "added_tokens": {"<y>": 7, "<x>": 8},
        "special_tokens_map": {"additional_special_tokens": ["<z>"], "cls_token": "<c>"},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_declared_tokens_have_the_ids_and_encodings_of_auto_tokenizer(case: str, folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for name, value in CASES[case].items():
        write(
            folder, "tokenizer_config" if name == "config" else name, {**CONFIG, **value} if name == "config" else value
        )
    theirs = AutoTokenizer.from_pretrained(folder)
    files = read_tokenizer_files(folder, 40)
    # A bundle has only the completed file, as in a browser.
    bundled = tmp_path / "bundled.json"
    bundled.write_bytes(files.content)
    for mine in (Tokenizer(files), Tokenizer(TokenizerFiles.at(bundled, bos_token=files.bos_token))):
        assert mine.encode(TEXT, split_special_tokens=False) == theirs(TEXT).input_ids
    assert Backend.from_file(str(bundled)).get_vocab() == theirs.get_vocab()
    listed = {each["id"]: each["content"] for each in json.loads(bundled.read_text())["added_tokens"]}
    assert listed == {token_id: token.content for token_id, token in theirs.added_tokens_decoder.items()}
    assert (files.bos_token, files.pad_token) == (theirs.bos_token, theirs.pad_token)
    assert (files.content != (folder / "tokenizer.json").read_bytes()) == (case != "no map beside the decoder")


def test_a_tokenizer_that_has_all_tokens_is_unchanged(folder: Path) -> None:
    decoder = {str(index): entry(word) for index, word in enumerate(WORDS[:3])}
    write(folder, "tokenizer_config", {**CONFIG, "added_tokens_decoder": decoder})
    assert read_tokenizer_files(folder, 7).content == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "tokenizer_config",
            {"added_tokens_decoder": {"9": entry("<x>")}},
            "token '<x>' has id 9, but the tokenizer gives it id 7",
        ),
        (
            "tokenizer_config",
            {"added_tokens_decoder": {"1": entry("<x>")}},
            "token '<x>' has id 1, but the tokenizer gives it id 7",
        ),
        ("added_tokens", {"<x>": 0}, r"added_tokens\.json: '<x>': token '<x>' has id 0"),
        (
            "tokenizer_config",
            {"pad_token": "<p>", "mask_token": "<m>"},
            r"'mask_token': token '<m>' has id 8, but .* vocabulary has 8",
        ),
        (
            "special_tokens_map",
            {"additional_special_tokens": ["a", "b"]},
            r"special_tokens_map\.json: .*token 'b' has id 8",
        ),
        ("tokenizer_config", {"added_tokens_decoder": []}, "'added_tokens_decoder' is .*, expected an object"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": entry("<x>")}}, "expected token ids, each with an object"),
        ("tokenizer_config", {"added_tokens_decoder": {"7": "<x>"}}, "expected token ids, each with an object"),
        (
            "tokenizer_config",
            {"added_tokens_decoder": {"7": {"content": "<x>", "lstrip": 1}}},
            "expected true or false",
        ),
        (
            "tokenizer_config",
            {"additional_special_tokens": "<x>"},
            "'additional_special_tokens' is '<x>', expected a list of tokens",
        ),
        (
            "tokenizer_config",
            {"extra_special_tokens": [5]},
            "'extra_special_tokens' is 5, expected a string or an object",
        ),
        ("added_tokens", {"<x>": "7"}, "'<x>' is '7', expected a token id"),
        ("added_tokens", {"<x>": -1}, "'<x>' is -1, expected a token id"),
    ],
)
def test_tokens_that_cannot_be_added_are_refused_by_name(name: str, value: object, message: str, folder: Path) -> None:
    write(folder, name, value)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer_files(folder, 8)
