"""Tokenizers rebuilt from vocab.json with merges.txt, or from vocab.txt, give the ids and texts of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from texts import CORPUS, TEXTS, random_texts
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from nearfar.compiler.formats.tokenizer_files import read_tokenizer_files
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

VOCAB_SIZE = 2000
# The values of tokenizer_config.json.
BYTE_LEVEL: Mapping[str, Mapping[str, Any]] = {
    "GPT2Tokenizer": {},
    "GPT2TokenizerFast": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "Qwen2Tokenizer": {
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    },
    "Qwen2TokenizerFast": {},
    "RobertaTokenizer": {},
}  # fmt: skip
WORD_PIECES: Mapping[str, Mapping[str, Any]] = {
    "BertTokenizer": {},
    "BertTokenizerFast": {"do_lower_case": False, "strip_accents": False, "tokenize_chinese_chars": False},
    "DistilBertTokenizer": {"strip_accents": True},
    "MPNetTokenizer": {},
}


@cache
def byte_level_model() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(CORPUS)], trainer)
    return tokenizer.model


@cache
def word_piece_model() -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "<pad>", "</s>", "<mask>"]
    tokenizer.train(
        [str(CORPUS)], trainers.WordPieceTrainer(vocab_size=600, special_tokens=specials, show_progress=False)
    )
    return tokenizer.model


def write(folder: Path, model: Any, values: Mapping[str, Any]) -> Path:
    model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [(byte_level_model, *item) for item in BYTE_LEVEL.items()]
    + [(word_piece_model, *item) for item in WORD_PIECES.items()],
    ids=[*BYTE_LEVEL, *WORD_PIECES],
)
def test_the_ids_are_those_of_transformers(
    make: Callable[[], Any], name: str, values: Mapping[str, Any], tmp_path: Path
) -> None:
    import transformers

    folder = write(tmp_path, make(), {"tokenizer_class": name, **values})
    expected = getattr(transformers, name).from_pretrained(folder)
    own = Tokenizer.from_buffer(read_tokenizer_files(folder, VOCAB_SIZE).content)
    texts = [*TEXTS, *random_texts(200), "a<|im_end|>b <mask> c</s>", "[CLS] x [MASK] y", "Ça naïve É e\u0301 日本語"]
    for text in texts:
        ids = own.encode(text).ids
        assert ids == expected(text)["input_ids"], text
        assert own.decode(ids, skip_special_tokens=False) == expected.backend_tokenizer.decode(
            ids, skip_special_tokens=False
        )
    pair = own.encode("What is it?", "A boat.")
    together = expected("What is it?", "A boat.")
    assert pair.ids == together["input_ids"]
    if "token_type_ids" in together and "Bert" in name:
        assert pair.type_ids == together["token_type_ids"]


@pytest.mark.parametrize("added", [{}, {"<|im_start|>": 600, "<|im_end|>": 601, "<extra>": 602}])
@pytest.mark.parametrize(
    ("make", "config"),
    [
        (byte_level_model, {"model_type": "qwen2"}),
        (byte_level_model, {"model_type": "roberta"}),
        (byte_level_model, {"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"}),
        (word_piece_model, {"model_type": "bert"}),
    ],
    ids=["qwen2", "roberta", "llama", "bert"],
)
def test_the_model_says_which_rules_a_vocabulary_alone_has(
    make: Callable[[], Any], config: Mapping[str, str], added: Mapping[str, int], tmp_path: Path
) -> None:
    import transformers

    make().save(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config))
    if added:
        (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)
    own = Tokenizer.from_buffer(read_tokenizer_files(tmp_path, VOCAB_SIZE + len(added) + 4).content)
    for text in (*TEXTS, *random_texts(40), "a<|im_start|>b <extra> c<|im_end|>", "<s>x</s>[SEP]<|endoftext|>"):
        assert own.encode(text).ids == expected(text)["input_ids"], text


def test_a_class_that_is_not_known_is_named_with_the_way_to_a_tokenizer_json(tmp_path: Path) -> None:
    write(tmp_path, byte_level_model(), {"tokenizer_class": "BlenderbotTokenizer"})
    with pytest.raises(
        UnsupportedModel, match=r"is 'BlenderbotTokenizer'; supported: GPT2.* write tokenizer\.json with Auto"
    ):
        read_tokenizer_files(tmp_path, VOCAB_SIZE)
    # A vocabulary without merges is not enough.
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(
        CheckpointError, match=r"neither tokenizer\.json nor tokenizer\.model, nor vocab\.json with merges"
    ):
        read_tokenizer_files(tmp_path, VOCAB_SIZE)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.json", b'{"a": 0, "b": 0}', "must map each token to an id of its own"),
        ("vocab.json", b'{"a": "0"}', "must map each token to an id of its own"),
        ("vocab.json", b"[", "not valid JSON"),
        ("merges.txt", b"#version: 0.2\na b c\n", "line 2 is 'a b c', expected two tokens"),
        ("merges.txt", b"a q\n", "line 1 is 'a q', expected two tokens that form a third"),
        ("merges.txt", b"\xff\n", "byte 0 is not UTF-8"),
    ],
)
def test_damaged_files_are_named(file: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert Tokenizer.from_buffer(read_tokenizer_files(tmp_path, 4).content).encode("ab").ids == [2]
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer_files(tmp_path, 4)


@pytest.mark.parametrize(
    ("words", "values", "message"),
    [
        ("[UNK]\n[SEP]\n", {}, r"vocab\.txt: has no token '\[CLS\]', which is the 'cls_token'"),
        ("[UNK]\n[CLS]\n[SEP]\n[CLS]\n", {}, "has the same token twice"),
        ("[UNK]\n[CLS]\n[SEP]\n", {"do_lower_case": "yes"}, "'do_lower_case' is 'yes' .string., expected true"),
    ],
)
def test_damaged_word_pieces_are_named(words: str, values: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(words)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **values}))
    with pytest.raises(CheckpointError, match=message):
        read_tokenizer_files(tmp_path, 9)
