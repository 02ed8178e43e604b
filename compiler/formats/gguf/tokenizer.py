"""Rebuilds the tokenizer.json of a model from a GGUF file's vocabulary.

The file has tokens, their kinds, merges or scores, and the name of the pre-tokenizer ("tokenizer.ggml.pre"), from which
llama.cpp derives the rest (llama_vocab::impl::load in src/llama-vocab.cpp of github.com/ggml-org/llama.cpp). The
regular expressions are those of the models' own tokenizer.json.
"""

from __future__ import annotations

import json
import string
from typing import Any

from ...runtime.text.tokenizer_files import TokenizerFiles
from ..byte_level import WORDS, byte_level
from ..tokenizer_json import (
    CONTINUES,
    CONTROL,
    NORMAL,
    SPACE,
    TO_PIECES,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    added_tokens,
    around_texts,
    bpe,
    implied_merges,
    pieces_decoder,
    prefixed,
    scored_pieces,
    surrounded,
    word_pieces,
)
from .encoders import ENCODERS
from .metadata import Metadata

# Tokens that end an answer, from the end of a turn to the end of a text. Files name only one of them.
ENDS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|eom_id|>", "<|endoftext|>",
        "<|end_of_text|>", "<eos>", "</s>", "<end_of_utterance>", "<EOT>", "<｜end▁of▁sentence｜>",
    }
)  # fmt: skip


def read_tokenizer(
    metadata: Metadata, vocab_size: int, *, ends_texts: bool = False
) -> tuple[TokenizerFiles, tuple[int, ...]]:
    """The tokenizer, and the ids of the tokens that end an answer. ``ends_texts``: a text may end with the eos token.
    Raises CheckpointError and UnsupportedModel.
    """
    model = metadata.text("tokenizer.ggml.model")
    if model == "none":
        raise metadata.unsupported("holds no tokenizer ('tokenizer.ggml.model' is 'none'); use a file with one")
    vocabulary = _read_vocabulary(metadata, vocab_size)
    if model == "gpt2":
        content, bos = _byte_level(metadata, vocabulary)
    elif model in ("llama", "gemma4"):
        content, bos = _sentence_pieces(metadata, vocabulary, model)
    elif model == "bert":
        vocabulary = of_word_pieces(metadata, vocabulary)
        content, bos = _word_pieces(metadata, vocabulary), True
    elif model == "t5":
        content, bos = _scored_pieces(metadata, vocabulary), False
    else:
        raise metadata.unsupported(
            f"a tokenizer of type {model!r} is not supported; supported: bert, gemma4, gpt2, llama, t5"
        )
    bos_token, eos_token, pad_token, unk_token = (
        _named(metadata, vocabulary, f"{key}_token_id") for key in ("bos", "eos", "padding", "unknown")
    )
    content["added_tokens"] = added_tokens(vocabulary, _stripping(metadata, model, vocabulary))
    if metadata.architecture in ENCODERS:
        content["post_processor"] = _around_texts(metadata, vocabulary, model)
    else:
        metadata.expect("tokenizer.ggml.add_eos_token", *((False, True) if ends_texts else (False,)))
        metadata.expect("tokenizer.ggml.add_sep_token", False)
        adds_bos, adds_eos = (
            metadata.flag(f"tokenizer.ggml.add_{key}_token", default) for key, default in (("bos", bos), ("eos", False))
        )
        if adds_eos and eos_token is None:
            raise metadata.corrupt("'tokenizer.ggml.add_eos_token' is true, but no token is named as the eos token")
        ends = bos_token if adds_bos else None, eos_token if adds_eos else None
        content["post_processor"] = surrounded(*ends, vocabulary.ids())
    end_ids = [metadata.optional_integer(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    tokenizer_json = {"version": "1.0", "truncation": None, "padding": None, **content}
    files = TokenizerFiles(
        where=metadata.path,
        content=json.dumps(tokenizer_json, ensure_ascii=False).encode(),
        chat_template=metadata.optional_text("tokenizer.chat_template"),
        bos_token=bos_token,
        eos_token=eos_token,
        pad_token=pad_token,
        unk_token=unk_token,
    )
    return files, tuple(dict.fromkeys([*(each for each in end_ids if each is not None), *_ends(vocabulary)]))


def _read_vocabulary(metadata: Metadata, vocab_size: int) -> Vocabulary:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        raise metadata.corrupt("'tokenizer.ggml.tokens' has the same token twice")
    if len(tokens) > vocab_size:
        raise metadata.corrupt(
            f"'tokenizer.ggml.tokens' has {len(tokens)} tokens, but the embedding has {vocab_size} rows"
        )
    kinds = metadata.numbers("tokenizer.ggml.token_type")
    if kinds is None:
        return Vocabulary(tokens, [NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise metadata.corrupt(f"'tokenizer.ggml.token_type' has {len(kinds)} items, expected {len(tokens)}")
    return Vocabulary(tokens, [int(kind) for kind in kinds])


def _named(metadata: Metadata, vocabulary: Vocabulary, key: str) -> str | None:
    number = metadata.optional_integer(f"tokenizer.ggml.{key}")
    if number is None:
        return None
    if number >= len(vocabulary.tokens):
        raise metadata.corrupt(f"'tokenizer.ggml.{key}' is {number}, but there are {len(vocabulary.tokens)} tokens")
    return vocabulary.tokens[number]


def _byte_level(metadata: Metadata, vocabulary: Vocabulary) -> tuple[dict[str, Any], bool]:
    """The parts of a byte-level tokenizer, and whether texts start with the bos token by default."""
    pre = metadata.text("tokenizer.ggml.pre", "default")
    words = WORDS.get(pre)
    if words is None:
        raise metadata.unsupported(
            f"'tokenizer.ggml.pre' is {pre!r}, a split of words that is not known; known: {', '.join(sorted(WORDS))}"
        )
    return byte_level(words, vocabulary.ids(), _listed_merges(metadata)), words.bos


def _sentence_pieces(metadata: Metadata, vocabulary: Vocabulary, model: str) -> tuple[dict[str, Any], bool]:
    """Like `_byte_level`, for SentencePiece vocabularies, which spell everything else with single bytes."""
    is_gemma = model == "gemma4" or metadata.architecture.startswith("gemma")
    tokens = list(vocabulary.tokens)
    if is_gemma:
        # The file contains runs of spaces literally, and the model's tokenizer.json spells them like SentencePiece.
        tokens = [SPACE * len(token) if token.strip(" ") == "" and len(token) > 1 else token for token in tokens]
        vocabulary = Vocabulary(tokens, vocabulary.kinds)
    if metadata.has("tokenizer.ggml.merges"):
        merges = _listed_merges(metadata)
    else:
        scores = None if is_gemma else metadata.numbers("tokenizer.ggml.scores")
        if scores is not None and len(scores) != len(tokens):
            raise metadata.corrupt(f"'tokenizer.ggml.scores' has {len(scores)} items, expected {len(tokens)}")
        merges = implied_merges(vocabulary, None if scores is None else scores.tolist())
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix", not is_gemma)
    # Only some converters write this key. llama.cpp reads it only for vocabularies of type t5.
    metadata.ignore("tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.precompiled_charsmap")
    content = {
        "normalizer": prefixed() if prefix else TO_PIECES,
        "pre_tokenizer": None,
        "decoder": pieces_decoder(strips=prefix),
        "model": bpe(vocabulary.ids(), merges, unk_token=vocabulary.unknown, fuse_unk=True, byte_fallback=True),
    }
    # The template of Gemma 4 writes the bos token.
    return content, model != "gemma4"


def of_word_pieces(metadata: Metadata, vocabulary: Vocabulary) -> Vocabulary:
    """The word pieces by BERT's own names: a file marks those that begin a word instead of the others."""
    own = [
        token if kind == CONTROL else token[1:] if token.startswith(SPACE) else CONTINUES + token
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    ]
    if len(set(own)) < len(own):
        raise metadata.corrupt("'tokenizer.ggml.tokens' has a word piece twice")
    return Vocabulary(own, vocabulary.kinds)


def _word_pieces(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The parts of BERT's tokenizer. Files without the key for it do not say whether a model reads lower case only: it
    does if no capital letter is a word piece.
    """
    capitals = set(vocabulary.tokens) & set(string.ascii_uppercase)
    lowercases = metadata.flag("tokenizer.ggml.normalizer.lowercase", not capitals)
    strips = metadata.flag("tokenizer.ggml.normalizer.strip_accents", lowercases)
    unknown = _named(metadata, vocabulary, "unknown_token_id") or _present(metadata, vocabulary, "[UNK]")
    return word_pieces(vocabulary.ids(), unknown, lowercases=lowercases, strips_accents=strips)


def _scored_pieces(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """The parts of a SentencePiece vocabulary whose likeliest pieces are chosen, such as XLM-RoBERTa's."""
    scores = metadata.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(vocabulary.tokens):
        raise metadata.corrupt(f"'tokenizer.ggml.scores' must have {len(vocabulary.tokens)} items")
    for key in ("add_space_prefix", "remove_extra_whitespaces"):
        metadata.expect(f"tokenizer.ggml.{key}", True)
    charsmap = metadata.numbers("tokenizer.ggml.precompiled_charsmap")
    unknown = _named(metadata, vocabulary, "unknown_token_id") or _present(metadata, vocabulary, "<unk>")
    return scored_pieces(
        list(zip(vocabulary.tokens, map(float, scores), strict=True)),
        vocabulary.tokens.index(unknown),
        None if charsmap is None else charsmap.astype("u1", casting="unsafe").tobytes(),
    )


def _around_texts(metadata: Metadata, vocabulary: Vocabulary, model: str) -> dict[str, Any]:
    """The special tokens around a text of an encoder. Raises UnsupportedModel for a file that leaves one out."""
    names = ("[CLS]", "[SEP]") if model == "bert" else ("<s>", "</s>")
    first, last = (
        next((token for key in keys if (token := _named(metadata, vocabulary, f"{key}_token_id"))), None)
        or _present(metadata, vocabulary, name)
        for keys, name in zip((("cls", "bos"), ("seperator", "eos")), names, strict=True)
    )
    for key in ("add_bos_token", "add_eos_token", "add_sep_token"):
        # llama.cpp itself puts both tokens around the texts of BERT.
        if model != "bert" and key != "add_sep_token" and not metadata.has(f"tokenizer.ggml.{key}"):
            raise metadata.unsupported(f"'tokenizer.ggml.{key}' is missing, so its texts have no special tokens")
        metadata.expect(f"tokenizer.ggml.{key}", True)
    doubled = model != "bert" and first == "<s>"
    return around_texts(first, last, vocabulary.ids(), doubled=doubled, trims=model == "gpt2")


def _present(metadata: Metadata, vocabulary: Vocabulary, token: str) -> str:
    if token not in vocabulary.tokens:
        raise metadata.unsupported(f"its tokenizer has no token {token!r}, and no key names another for it")
    return token


def _listed_merges(metadata: Metadata) -> list[list[str]]:
    """Pairs, which the file joins by a space. A token may itself start with a space."""
    merges = []
    for merge in metadata.texts("tokenizer.ggml.merges"):
        at = merge.find(" ", 1)
        if at < 1:
            raise metadata.corrupt(f"'tokenizer.ggml.merges' has {merge!r}, expected two tokens")
        merges.append([merge[:at], merge[at + 1 :]])
    return merges


def _stripping(metadata: Metadata, model: str, vocabulary: Vocabulary) -> frozenset[str]:
    """The tokens that take the white space behind them: control tokens of Phi-3."""
    if model != "llama" or metadata.architecture != "phi3":
        return frozenset()
    kept = ("<unk>", "<s>", "<|endoftext|>")
    pairs = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    return frozenset(token for token, kind in pairs if kind in (CONTROL, UNKNOWN) and token not in kept)


def _ends(vocabulary: Vocabulary) -> list[int]:
    """The tokens that end an answer by their names."""
    return [
        number
        for number, token in enumerate(vocabulary.tokens)
        if token in ENDS and vocabulary.kinds[number] in (CONTROL, USER_DEFINED)
    ]
