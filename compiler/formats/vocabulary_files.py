"""Makes the tokenizer.json of a model whose folder has only a vocabulary: vocab.json and merges.txt (byte-level BPE),
vocab.txt (WordPiece), or an encoder's SentencePiece model (`encoder_pieces.py`). `tokenizer_class` of
tokenizer_config.json or config.json says which rules are meant, or config.json's model_type; they are those of
transformers' classes (models/*/tokenization_*.py), as are the special tokens of files that name none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..runtime.errors import CheckpointError, UnsupportedModel, reason_of
from . import encoder_pieces
from .added_tokens import TokenizerConfig
from .byte_level import WORDS, byte_level
from .config import is_integer
from .json_file import read_json_object
from .tokenizer_json import around_texts, word_pieces

VOCABULARY, MERGES, WORD_PIECES = "vocab.json", "merges.txt", "vocab.txt"
END = "<|endoftext|>"
BERT_TOKENS = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}  # fmt: skip
MPNET_TOKENS = {
    "unk_token": "[UNK]", "sep_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip
ROBERTA_TOKENS = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
DEBERTA_TOKENS = {**BERT_TOKENS, "bos_token": "[CLS]", "eos_token": "[SEP]"}
ALBERT_TOKENS = {**DEBERTA_TOKENS, "unk_token": "<unk>", "pad_token": "<pad>"}


@dataclass(frozen=True, slots=True)
class Rules:
    """``tokens``: the special tokens of files that name none. ``content`` makes a tokenizer.json of ``file``, and of
    what lies beside it.
    """

    tokens: Mapping[str, str]
    content: Callable[[TokenizerConfig], dict[str, Any]]
    file: str


def rules_of(config: TokenizerConfig) -> Rules | None:
    """The rules of a folder's vocabulary; None if it has none. Raises UnsupportedModel for a class of tokenizers that
    is not known.
    """
    path = config.path
    found = [classes for files, classes in CLASSES_OF_FILES.items() if all((path / file).is_file() for file in files)]
    if not found:
        return None
    known = {name: rules for classes in found for name, rules in classes.items()}
    name = config.values.get("tokenizer_class") or _class_of_model(path / "config.json")
    rules = known.get(name.removesuffix("Fast")) if isinstance(name, str) else None
    if rules is None:
        raise UnsupportedModel(
            f"{path}: has a vocabulary but no tokenizer.json, and 'tokenizer_class' of tokenizer_config.json is "
            f"{name!r}; supported: {', '.join(known)}; write tokenizer.json with "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return rules


def _class_of_model(file: Path) -> object:
    """The class of tokenizers that config.json names, or that its model has in transformers."""
    values = read_json_object(file) if file.is_file() else {}
    return values.get("tokenizer_class") or CLASSES.get(str(values.get("model_type")))


def _gpt2(config: TokenizerConfig) -> dict[str, Any]:
    return byte_level(WORDS["gpt-2"], *_vocabulary(config.path))


def _qwen2(config: TokenizerConfig) -> dict[str, Any]:
    return byte_level(WORDS["qwen2"], *_vocabulary(config.path))


def _roberta(config: TokenizerConfig) -> dict[str, Any]:
    ids, merges = _vocabulary(config.path)
    first, last = (config.special(key, ids, VOCABULARY) for key in ("cls_token", "sep_token"))
    around = around_texts(first, last, ids, doubled=True, trims=True)
    return {**byte_level(WORDS["gpt-2"], ids, merges), "post_processor": around}


def _bert(config: TokenizerConfig, *, doubled: bool = False) -> dict[str, Any]:
    """``doubled``: two tokens are between the texts of a pair."""
    file = config.path / WORD_PIECES
    tokens = _lines(file)
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise _damaged(file, "has the same token twice")
    first, last = (config.special(key, ids, WORD_PIECES) for key in ("cls_token", "sep_token"))
    parts = word_pieces(
        ids,
        config.special("unk_token", ids, WORD_PIECES),
        lowercases=config.flag("do_lower_case", True),
        strips_accents=config.flag("strip_accents", None),
        splits_chinese=config.flag("tokenize_chinese_chars", True),
    )
    return {**parts, "post_processor": around_texts(first, last, ids, doubled=doubled)}


BYTE_LEVEL = {
    "GPT2Tokenizer": Rules(dict.fromkeys(("unk_token", "bos_token", "eos_token"), END), _gpt2, VOCABULARY),
    "Qwen2Tokenizer": Rules(dict.fromkeys(("unk_token", "eos_token", "pad_token"), END), _qwen2, VOCABULARY),
    "RobertaTokenizer": Rules(ROBERTA_TOKENS, _roberta, VOCABULARY),
}
WORDPIECE = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer"), Rules(BERT_TOKENS, _bert, WORD_PIECES)),
    "MPNetTokenizer": Rules(MPNET_TOKENS, partial(_bert, doubled=True), WORD_PIECES),
}
SENTENCE_PIECES = {
    file: {name: Rules(tokens, content, file)}
    for file, name, tokens, content in (
        (encoder_pieces.XLM_ROBERTA, "XLMRobertaTokenizer", ROBERTA_TOKENS, encoder_pieces.xlm_roberta),
        (encoder_pieces.DEBERTA, "DebertaV2Tokenizer", DEBERTA_TOKENS, encoder_pieces.deberta),
        (encoder_pieces.ALBERT, "AlbertTokenizer", ALBERT_TOKENS, encoder_pieces.albert),
    )
}
CLASSES_OF_FILES: Mapping[tuple[str, ...], Mapping[str, Rules]] = {
    (VOCABULARY, MERGES): BYTE_LEVEL,
    (WORD_PIECES,): WORDPIECE,
    **{(file,): classes for file, classes in SENTENCE_PIECES.items()},
}
# The classes of models (transformers, models/auto/tokenization_auto.py).
CLASSES = {
    **dict.fromkeys(("bert", "distilbert", "nomic_bert"), "BertTokenizer"),
    **dict.fromkeys(("qwen2", "qwen2_5_vl", "qwen2_vl", "qwen3", "qwen3_vl"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gte", "jina_embeddings_v3", "new", "xlm-roberta"), "XLMRobertaTokenizer"),
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
}


def _vocabulary(path: Path) -> tuple[dict[str, int], list[list[str]]]:
    """The ids of tokens, and the merges."""
    file = path / VOCABULARY
    ids = read_json_object(file)
    if not all(is_integer(number) and number >= 0 for number in ids.values()) or len(set(ids.values())) != len(ids):
        raise _damaged(file, "must map each token to an id of its own")
    merges = []
    for number, line in enumerate(_lines(path / MERGES), start=1):
        if line and not line.startswith("#version"):
            pair = line.split(" ")
            if len(pair) != 2 or not all(part in ids for part in (*pair, "".join(pair))):
                raise _damaged(path / MERGES, f"line {number} is {line!r}, expected two tokens that form a third")
            merges.append(pair)
    return ids, merges


def _lines(file: Path) -> list[str]:
    try:
        # Only line feeds separate tokens, which may be other kinds of line breaks.
        text = file.read_bytes().decode("utf-8").removesuffix("\n")
    except OSError as error:
        raise _damaged(file, f"cannot be read: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        raise _damaged(file, f"byte {error.start} is not UTF-8") from error
    return [line.removesuffix("\r") for line in text.split("\n")]


def _damaged(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{file}: {problem}; download it again", file=str(file))
