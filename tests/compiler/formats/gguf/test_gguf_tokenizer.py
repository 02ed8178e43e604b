"""Tokenizers rebuilt from GGUF files give the ids of the tokenizers that the files were made from."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import TokenType
from texts import CORPUS, TEXTS, random_texts
from tokenizers import Tokenizer

from nearfar.compiler.formats.gguf.container import read_container
from nearfar.compiler.formats.gguf.metadata import Metadata
from nearfar.compiler.formats.gguf.tokenizer import read_tokenizer
from nearfar.compiler.formats.tokenizer_json import SPACE
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, UnsupportedModel

# The folder of llama.cpp's sources, whose models/ has vocabularies with texts (.inp) and their ids (.out).
LLAMA_CPP = os.environ.get("NEARFAR_LLAMA_CPP", "")
SEPARATOR = "\n__ggml_vocab_test__\n"


def read(path: Path, size: int = 1 << 20) -> tuple[Tokenizer, tuple[int, ...]]:
    files, ends = read_tokenizer(Metadata(read_container(path)), size)
    return Tokenizer.from_buffer(files.content), ends


def write_vocabulary(path: Path, values: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> Path:
    """A file with nothing but a vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(kinds))
    for key, value in values.items():
        add = getattr(writer, f"add_{key}")
        add(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_byte_level_vocabulary_gives_the_ids_of_its_tokenizer(tmp_path: Path) -> None:
    from tokenizers import decoders, models, pre_tokenizers, trainers

    original = Tokenizer(models.BPE())
    original.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    original.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    original.train_from_iterator([CORPUS.read_text(), *TEXTS], trainer)
    merges = original_merges(original)
    tokens = [str(original.id_to_token(number)) for number in range(original.get_vocab_size())]
    kinds = [TokenType.CONTROL if token == "<|endoftext|>" else TokenType.NORMAL for token in tokens]
    values = {
        "tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_merges": merges, "eos_token_id": 0,
        "bos_token_id": 0,
    }  # fmt: skip
    found, ends = read(write_vocabulary(tmp_path / "x.gguf", values, tokens, kinds))
    assert ends == (0,)
    for text in (*TEXTS, *random_texts(300), "a<|endoftext|>b"):
        ids = found.encode(text).ids
        assert ids == original.encode(text).ids, repr(text)
        assert found.decode(ids, skip_special_tokens=False) == text


def original_merges(tokenizer: Tokenizer) -> list[str]:
    import json

    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


@pytest.mark.parametrize("prefix", [True, False])
def test_a_sentencepiece_vocabulary_gives_the_ids_of_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    stored = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS.read_text().splitlines(), *TEXTS[:5]]),
        model_writer=stored,
        model_type="bpe",
        vocab_size=900,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        minloglevel=2,
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=stored.getvalue())
    numbers = range(original.vocab_size())
    kinds = [kind_of(original, number) for number in numbers]
    values = {
        "tokenizer_model": "llama",
        "token_scores": [original.get_score(number) for number in numbers],
        "add_space_prefix": prefix,
        "bos_token_id": original.bos_id(),
        "eos_token_id": original.eos_id(),
        "unk_token_id": original.unk_id(),
    }
    tokens = [original.id_to_piece(number) for number in numbers]
    found, ends = read(write_vocabulary(tmp_path / "x.gguf", values, tokens, kinds))
    assert ends == (original.eos_id(),)
    for text in (*TEXTS, *random_texts(300)):
        if "\x00" in text:
            # SentencePiece ends a text there.
            continue
        assert found.encode(text).ids == [original.bos_id(), *original.encode(text)], repr(text)
        if SPACE not in text:
            assert found.decode(original.encode(text)) == text


def kind_of(original: Any, number: int) -> TokenType:
    if original.is_unknown(number):
        return TokenType.UNKNOWN
    if original.is_control(number):
        return TokenType.CONTROL
    return TokenType.BYTE if original.is_byte(number) else TokenType.NORMAL


@pytest.mark.skipif(not LLAMA_CPP, reason="set NEARFAR_LLAMA_CPP to the folder of llama.cpp's sources")
def test_the_vocabularies_of_llama_cpp_give_the_ids_in_the_files_beside_them() -> None:
    checked = 0
    for path in sorted(Path(LLAMA_CPP, "models").glob("ggml-vocab-*.gguf")):
        try:
            found, _ = read(path)
        except UnsupportedModel:
            continue
        if not path.with_suffix(".gguf.inp").is_file():
            continue
        texts = path.with_suffix(".gguf.inp").read_bytes().decode().split(SEPARATOR)
        expected = path.with_suffix(".gguf.out").read_text().splitlines()
        assert len(expected) <= len(texts)
        for text, ids in zip(texts, expected, strict=False):
            assert found.encode(text, add_special_tokens=False).ids == [int(each) for each in ids.split()], path.name
        checked += 1
    assert checked >= 8


@pytest.mark.parametrize(
    ("tokens", "values", "error", "words"),
    [
        (["a", "a"], {}, CheckpointError, "the same token twice"),
        (["a", "b"], {"tokenizer_pre": "viking"}, UnsupportedModel, "'viking', a split of words that is not known"),
        (["a", "b"], {"tokenizer_model": "rwkv"}, UnsupportedModel, "a tokenizer of type 'rwkv' is not supported"),
        ([], {"tokenizer_model": "none"}, UnsupportedModel, "holds no tokenizer"),
        (["a", "b"], {"token_merges": ["ab"]}, CheckpointError, "has 'ab', expected two tokens"),
        (["a", "b"], {"eos_token_id": 2}, CheckpointError, "'tokenizer.ggml.eos_token_id' is 2, but there are 2"),
        (["a", "b"], {"add_eos_token": True}, UnsupportedModel, "'tokenizer.ggml.add_eos_token' is True"),
        (["a"] * 2000, {}, CheckpointError, "twice"),
    ],
)
def test_a_vocabulary_that_we_cannot_rebuild_is_refused(
    tokens: list[str], values: dict[str, Any], error: type[NearfarError], words: str, tmp_path: Path
) -> None:
    values = {"tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_merges": ["a b"], **values}
    path = write_vocabulary(tmp_path / "x.gguf", values, tokens, [TokenType.NORMAL] * len(tokens))
    with pytest.raises(error, match=words):
        read(path)


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    values = {"tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_merges": []}
    path = write_vocabulary(tmp_path / "x.gguf", values, ["a", "b"], [TokenType.NORMAL] * 2)
    with pytest.raises(CheckpointError, match="has 2 tokens, but the embedding has 1 rows"):
        read(path, 1)
