"""Tokenizers rebuilt from tokenizer.model give the ids of sentencepiece and of transformers."""

from __future__ import annotations

import json
import os
import struct
import unicodedata
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentencepiece_files import trained
from texts import TEXTS, random_texts
from tokenizers import Tokenizer

from nearfar.compiler.formats.sentencepiece_model import FILE
from nearfar.compiler.formats.tokenizer_files import read_tokenizer_files
from nearfar.compiler.formats.tokenizer_json import SPACE
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel
from nearfar.compiler.runtime.text.tokenizer import Tokenizer as OurTokenizer

sentencepiece = pytest.importorskip("sentencepiece")

PLAIN: Mapping[str, Any] = {
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "allow_whitespace_only_pieces": True,
    "split_digits": True,
    "byte_fallback": True,
}
# Models like Llama's and Gemma's, and two unigram models: with sentencepiece's own normalization, and with bytes.
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**PLAIN, "model_type": "bpe"},
    "gemma": {
        **PLAIN,
        "model_type": "bpe",
        "add_dummy_prefix": False,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "user_defined_symbols": ["<start_of_turn>", "<end_of_turn>", "\n\n"],
        "control_symbols": ["<mask>"],
    },
    "bpe_nfkc": {"model_type": "bpe", "vocab_size": 600},
    "unigram_nfkc": {"model_type": "unigram", "vocab_size": 600},
    "unigram_bytes": {**PLAIN, "model_type": "unigram", "required_chars": "<0x41>"},
}


def of(name: str) -> bytes:
    return trained(**{"vocab_size": 900, **MODELS[name]})


def write(folder: Path, name: str, config: Mapping[str, Any] | None = None) -> Any:
    """Write a tokenizer.model and its tokenizer_config.json. Returns sentencepiece's reader."""
    folder.joinpath(FILE).write_bytes(of(name))
    if config is not None:
        folder.joinpath("tokenizer_config.json").write_text(json.dumps(config))
    return sentencepiece.SentencePieceProcessor(model_proto=of(name))


def found(folder: Path) -> Tokenizer:
    return Tokenizer.from_buffer(read_tokenizer_files(folder, 2000).content)


@pytest.mark.parametrize("name", MODELS)
def test_ids_are_those_of_sentencepiece(name: str, tmp_path: Path) -> None:
    original = write(tmp_path, name)
    tokenizer = found(tmp_path)
    for text in (*TEXTS, *random_texts(300), "aaaaaaa bbbb", "a <end_of_turn>\n\n\n<start_of_turn>b", "<0x41>", "   "):
        # SentencePiece ends a text at a zero byte. The tokenizers library drops marks behind characters that NFKC
        # replaces.
        if "\x00" in text or ("nfkc" in name and any(map(unicodedata.combining, text))):
            continue
        ids = tokenizer.encode(text).ids
        assert ids == [original.bos_id(), *original.encode(text)], repr(text)
        # SentencePiece shows an unknown token as "??".
        if original.unk_id() not in ids:
            assert tokenizer.decode(ids[1:]) == original.decode(ids[1:]), repr(text)


@pytest.mark.parametrize("legacy", [True, False])
def test_ids_are_those_of_transformers(legacy: bool, tmp_path: Path) -> None:
    import transformers

    tokens = {
        "900": {"content": "<|user|>", "special": True, "rstrip": True, "normalized": False},
        "901": {"content": "<|end|>", "special": True, "rstrip": True, "normalized": False},
    }
    config = {
        "tokenizer_class": "LlamaTokenizer",
        "legacy": legacy,
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "<|end|>",
        "unk_token": "<unk>",
        "added_tokens_decoder": tokens,
        "chat_template": "{{ bos_token }}{{ messages[0].content }}",
    }
    write(tmp_path, "llama", config)
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    files = read_tokenizer_files(tmp_path, 2000)
    assert (files.eos_token, files.chat_template) == ("<|end|>", config["chat_template"])
    tokenizer = Tokenizer.from_buffer(files.content)
    for text in (*TEXTS, "<|user|>\nHello there<|end|>\n<|user|> hi", "<s>a</s>b", "<s> [INST] x"):
        # transformers does not add a space before a text that starts with one.
        if not text.startswith((" ", SPACE)) and "> " not in text and "\x00" not in text:
            assert tokenizer.encode(text).ids == expected.encode(text), repr(text)


def test_a_model_without_a_configuration_names_its_own_tokens(tmp_path: Path) -> None:
    original = write(tmp_path, "gemma")
    files = read_tokenizer_files(tmp_path, 2000)
    names = (files.bos_token, files.eos_token, files.pad_token, files.unk_token)
    assert names == ("<s>", "</s>", "<pad>", "<unk>")
    assert files.where.name == FILE
    tokenizer = OurTokenizer(files)
    assert tokenizer.encode("Hello") == [original.bos_id(), *original.encode("Hello")]
    # Text does not become a control token.
    forged = tokenizer.encode("<mask></s>")
    assert original.piece_to_id("<mask>") not in forged
    assert original.eos_id() not in forged
    assert tokenizer.decode(forged) == "<mask></s>"


def test_configured_tokens_replace_unused_pieces_and_declare_what_surrounds_a_text(tmp_path: Path) -> None:
    config = {
        "add_bos_token": False,
        "add_eos_token": True,
        "added_tokens_decoder": {"4": {"content": "<|im_start|>", "special": True}},
    }
    original = write(tmp_path, "gemma", config)
    assert original.id_to_piece(4) == "<mask>"
    tokenizer = found(tmp_path)
    assert tokenizer.encode("<|im_start|>a").ids == [4, *original.encode("a"), original.eos_id()]


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


PIECE = field(1, field(1, b"a") + field(2, -1.0))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", CheckpointError, "has no pieces"),
        (b"\xff" * 40, CheckpointError, "is not a SentencePiece model: a number of more than 10 bytes"),
        (PIECE[:-2], CheckpointError, "is not a SentencePiece model: .* bytes are expected at byte"),
        (varint(1 << 3 | 2) + varint(1 << 60), CheckpointError, "1152921504606846976 bytes are expected"),
        (PIECE + b"\x07", CheckpointError, "field number 0"),
        (PIECE + b"\x0f", CheckpointError, "unknown type 7"),
        (field(1, field(1, b"\xff")), CheckpointError, "is not a SentencePiece model: 'utf-8'"),
        (field(1, field(1, 3)), CheckpointError, "a number in place of a text"),
        (PIECE + PIECE, CheckpointError, "has a piece twice"),
        (field(1, field(1, b"a") + field(3, 9)), CheckpointError, "a piece of an unknown type"),
        (
            PIECE + field(2, field(3, 3)),
            UnsupportedModel,
            "'model_type' is 3, which is not supported; supported: 1 and 2",
        ),
        (PIECE + field(2, field(24, 1)), UnsupportedModel, "'treat_whitespace_as_suffix' is 1"),
        (PIECE + field(3, field(5, 0)), UnsupportedModel, "'escape_whitespaces' is 0"),
        (PIECE + field(2, field(40, 5)), CheckpointError, "'unk_id' is 5, and it has 1 pieces"),
        (PIECE + field(3, field(2, b"abc")), CheckpointError, "cannot be loaded as a tokenizer"),
        (b"version https://git-lfs.github.com/spec/v1", CheckpointError, "is a Git LFS pointer"),
        (b"IQ== 0\nIg== 1\n", CheckpointError, "is not a SentencePiece model"),
    ],
)
def test_a_file_that_is_no_model_is_refused(data: bytes, error: type[NearfarError], words: str, tmp_path: Path) -> None:
    tmp_path.joinpath(FILE).write_bytes(data)
    with pytest.raises(error, match=words):
        read_tokenizer_files(tmp_path, 2000)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"legacy": "no"}, "'legacy' is 'no'"),
        ({"added_tokens_decoder": {"300": {"content": "<|x|>"}}}, "has id 300, but the tokenizer gives it id"),
        ({"added_tokens_decoder": {"2000": {"content": "<|x|>"}}}, "has id 2000"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    write(tmp_path, "llama", config)
    with pytest.raises(CheckpointError, match=words):
        read_tokenizer_files(tmp_path, 2000)


ODD: list[Any] = [
    None,
    True,
    3,
    -1,
    10**400,
    1.5,
    "",
    "x",
    "\ud800",
    [],
    ["<s>"],
    {},
    {"content": 3},
    {"4": {}},
    {"4": 1},
]


@pytest.mark.parametrize(
    "key",
    ["bos_token", "eos_token", "add_bos_token", "add_eos_token", "add_prefix_space", "legacy", "added_tokens_decoder"],
)
def test_odd_values_result_in_a_tokenizer_or_a_typed_error(key: str, tmp_path: Path) -> None:
    for value in ODD:
        write(tmp_path, "llama", {"add_eos_token": True, key: value})
        with suppress(NearfarError):
            assert Tokenizer.from_buffer(read_tokenizer_files(tmp_path, 2000).content).encode("Hello").ids


@pytest.mark.parametrize("name", ["gemma", "unigram_nfkc"])
def test_mutated_models_result_in_a_tokenizer_or_a_typed_error(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    original = of(name)
    for _ in range(int(os.environ.get("NEARFAR_FUZZ_EXAMPLES", "40"))):
        data = bytearray(original)
        for at in rng.integers(0, len(data), rng.integers(1, 4)):
            data[at] = rng.integers(256)
        tmp_path.joinpath(FILE).write_bytes(data[: rng.integers(len(data))] if rng.random() < 0.2 else data)
        with suppress(NearfarError):
            read_tokenizer_files(tmp_path, 2000)


def test_a_folder_without_a_tokenizer_names_both_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has neither tokenizer\.json nor tokenizer\.model"):
        read_tokenizer_files(tmp_path, 2000)
