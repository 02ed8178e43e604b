"""Tokenizers rebuilt from an encoder's SentencePiece model give the ids, types and places of transformers."""

from __future__ import annotations

import importlib
import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from sentencepiece_files import trained
from texts import TEXTS, random_texts
from tokenizers import Tokenizer, models

from nearfar.compiler.formats.tokenizer_files import read_tokenizer_files
from nearfar.compiler.runtime.errors import CheckpointError, UnsupportedModel

sentencepiece = pytest.importorskip("sentencepiece")

MORE_TEXTS = (
    "Ça naïve É e\u0301 ﬁne ①② ½ ㌔ ｆｕｌｌ", "``quoted'' it's 1,000, 24, and 7", "a<mask> b [MASK]c <s>x</s> [SEP]y",
    "zero\u200bwidth \u00adsoft\u00a0no\u3000wide", "▁mark  ▁▁", "STRASSE İstanbul ΣΊΣΥΦΟΣ",
)  # fmt: skip
BRACKETED = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "bos_piece": "[CLS]",
             "eos_piece": "[SEP]", "unk_piece": "[UNK]"}  # fmt: skip


class Family(NamedTuple):
    """``model``: options of sentencepiece's trainer. ``config``: values of tokenizer_config.json that matter."""

    file: str
    converter: str
    model: Mapping[str, Any]
    config: Mapping[str, Any]
    model_types: tuple[str, ...]


FAMILIES = {
    "XLMRobertaTokenizer": Family(
        "sentencepiece.bpe.model", "XLMRobertaConverter", {"user_defined_symbols": ["boat!"]},
        {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": True}},
        ("xlm-roberta", "gte", "new", "jina_embeddings_v3"),
    ),
    "DebertaV2Tokenizer": Family(
        "spm.model", "DebertaV2Converter", BRACKETED, {"do_lower_case": True, "split_by_punct": True}, ("deberta-v2",)
    ),
    "AlbertTokenizer": Family(
        "spiece.model", "AlbertConverter",
        {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1, "control_symbols": ["[CLS]", "[SEP]"],
         "user_defined_symbols": ["[MASK]", "24,"]},
        {"do_lower_case": False, "keep_accents": True}, ("albert",),
    ),
}  # fmt: skip
CASES = [(name, config) for name, family in FAMILIES.items() for config in ({}, family.config)]


def write(folder: Path, name: str, config: Mapping[str, Any], **model: Any) -> Path:
    """Write a model as repositories have it: the class is not named, and in ALBERT's "24," is a piece."""
    from sentencepiece import sentencepiece_model_pb2

    family = FAMILIES[name]
    # protobuf makes the names of a generated module at run time.
    stored = cast(Any, sentencepiece_model_pb2).ModelProto.FromString(
        trained(**{"vocab_size": 600, **family.model, **model})
    )
    for piece in stored.pieces:
        if piece.piece == "24,":
            piece.type, piece.score = 1, -1.0
    folder.joinpath(family.file).write_bytes(stored.SerializeToString())
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(config))
    folder.joinpath("config.json").write_text(json.dumps({"model_type": family.model_types[0]}))
    return folder


def of_transformers(name: str, folder: Path, config: Mapping[str, Any]) -> tuple[Any, Tokenizer]:
    """transformers' tokenizer of a folder, and the one of the tokenizers library that is right. DeBERTa's is the
    converter's, because the class lacks the model's normalization (transformers 5.24). Others have the converter's
    scores, because ALBERT's class reads "24," as one piece.
    """
    import transformers

    opened = getattr(transformers, name).from_pretrained(folder)
    # transformers shows a function of this name in place of the module.
    module = importlib.import_module("transformers.convert_slow_tokenizer")
    values = {"do_lower_case": name == "AlbertTokenizer", "keep_accents": False, "split_by_punct": False, **config}
    path = folder / FAMILIES[name].file
    original = SimpleNamespace(
        vocab_file=str(path), add_prefix_space=True, convert_tokens_to_ids=opened.convert_tokens_to_ids, **values
    )
    converter = getattr(module, FAMILIES[name].converter)(original)
    if name == "DebertaV2Tokenizer":
        tokenizer: Tokenizer = converter.converted()
        tokenizer.add_tokens(list(opened.added_tokens_decoder.values()))
        return opened, tokenizer
    tokenizer = opened.backend_tokenizer
    tokenizer.model = models.Unigram(converter.vocab(converter.proto), converter.unk_id(converter.proto), False)
    return opened, tokenizer


@pytest.mark.parametrize(("name", "config"), CASES)
def test_ids_types_and_places_are_those_of_transformers(name: str, config: Mapping[str, Any], tmp_path: Path) -> None:
    opened, expected = of_transformers(name, write(tmp_path, name, config), config)
    files = read_tokenizer_files(tmp_path, 2000)
    own = Tokenizer.from_buffer(files.content)
    for text in (*TEXTS, *MORE_TEXTS, *random_texts(300)):
        found, known = own.encode(text), expected.encode(text)
        assert (found.ids, found.offsets) == (known.ids, known.offsets), text
        assert own.decode(found.ids, False) == expected.decode(known.ids, False), text
    pair, known = own.encode("What is it?", "A boat, 24,000."), expected.encode("What is it?", "A boat, 24,000.")
    assert (pair.ids, pair.offsets) == (known.ids, known.offsets)
    types = opened("What is it?", "A boat, 24,000.").get("token_type_ids")
    assert types is None or pair.type_ids == known.type_ids
    for key in ("bos_token", "pad_token", "unk_token"):
        assert getattr(files, key) in (None, getattr(opened, key))


@pytest.mark.parametrize("name", ["DebertaV2Tokenizer", "XLMRobertaTokenizer"])
def test_ids_are_those_of_sentencepiece(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    path = write(tmp_path, name, {}) / family.file
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    own = Tokenizer.from_buffer(read_tokenizer_files(tmp_path, 2000).content)
    for text in (*TEXTS, *random_texts(300)):
        # As in test_sentencepiece_model.py.
        if "\x00" in text or any(map(unicodedata.combining, text)):
            continue
        ids = original.encode(text)
        if name == "XLMRobertaTokenizer":
            ids = [number + 1 if number else 3 for number in ids]
        assert own.encode(text, add_special_tokens=False).ids == ids, text


@pytest.mark.parametrize("model_type", ["gte", "jina_embeddings_v3", "new"])
def test_families_with_the_tokenizer_of_xlm_roberta(model_type: str, tmp_path: Path) -> None:
    write(tmp_path, "XLMRobertaTokenizer", {})
    expected = read_tokenizer_files(tmp_path, 2000)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert read_tokenizer_files(tmp_path, 2000) == expected


@pytest.mark.parametrize(
    ("name", "config", "model", "message"),
    [
        ("XLMRobertaTokenizer", {}, {"model_type": "bpe"}, "bpe.model: 'model_type' is 2, which is not supported for"),
        ("DebertaV2Tokenizer", {}, {"byte_fallback": True}, "spm.model: 'byte_fallback' is 1, .* supported: 0; write"),
        ("AlbertTokenizer", {"add_prefix_space": False}, {}, "'add_prefix_space' is False, .* supported: True"),
        ("DebertaV2Tokenizer", {"split_by_punct": "no"}, {}, "'split_by_punct' is 'no' .string., expected true"),
        ("DebertaV2Tokenizer", {"cls_token": "<cls>"}, {}, "spm.model: has no token '<cls>', which is the 'cls_token'"),
        ("XLMRobertaTokenizer", {"pad_token": ","}, {}, "has a special token among its other pieces"),
        (
            "XLMRobertaTokenizer",
            {},
            {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
            "its first pieces are '<pad>', '</s>', '<unk>', and those of XLM-RoBERTa are",
        ),
        ("AlbertTokenizer", {"tokenizer_class": "T5Tokenizer"}, {}, "is 'T5Tokenizer'; supported: AlbertTokenizer;"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    name: str, config: Mapping[str, Any], model: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    write(tmp_path, name, config, **model)
    with pytest.raises((CheckpointError, UnsupportedModel), match=message):
        read_tokenizer_files(tmp_path, 2000)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"score": float("nan")}, "is not a SentencePiece model: the score of piece 60 is nan; download it again"),
        ({"unk_id": 600}, "is not a SentencePiece model: 'unk_id' is 600, and it has 600 pieces; download it again"),
        ({"charsmap": b"abc"}, "cannot be loaded as a tokenizer: .*precompiled_charsmap"),
    ],
)
def test_damage_is_reported_of_the_file_that_the_folder_has(
    damage: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    from sentencepiece import sentencepiece_model_pb2

    file = write(tmp_path, "DebertaV2Tokenizer", {}) / "spm.model"
    stored = cast(Any, sentencepiece_model_pb2).ModelProto.FromString(file.read_bytes())
    stored.pieces[60].score = damage.get("score", 0.0)
    stored.trainer_spec.unk_id = damage.get("unk_id", stored.trainer_spec.unk_id)
    stored.normalizer_spec.precompiled_charsmap = damage.get("charsmap", b"")
    file.write_bytes(stored.SerializeToString())
    with pytest.raises(CheckpointError, match=f"spm.model: {message}"):
        read_tokenizer_files(tmp_path, 2000)
