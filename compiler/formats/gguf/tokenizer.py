"""Rebuilds the tokenizer.json of a model from a GGUF file's vocabulary.

The file has tokens, their kinds, merges or scores, and the name of the pre-tokenizer ("tokenizer.ggml.pre"), from which
llama.cpp derives the rest (llama_vocab::impl::load in src/llama-vocab.cpp of github.com/ggml-org/llama.cpp). The
regular expressions are those of the models' own tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..checkpoint import TokenizerFiles
from .metadata import Metadata

# Kinds of tokens.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# Tokens that end an answer, from the end of a turn to the end of a text. Files name only one of them.
ENDS = frozenset(
    {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|eom_id|>", "<|endoftext|>",
        "<|end_of_text|>", "<eos>", "</s>",
    }
)  # fmt: skip
# SentencePiece's character for a space.
SPACE = "\u2581"
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WHITE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _WHITE
)  # fmt: skip
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _WHITE
_QWEN35 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _WHITE
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _WHITE
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _WHITE
)


@dataclass(frozen=True, slots=True)
class Words:
    """The rules by which a byte-level tokenizer splits a text into words: each of ``patterns`` in turn. ``whole``: a
    word that is itself a token is not built from merges. ``bos``: a text starts with the bos token by default.
    ``composed``: the text is normalized to NFC.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    bos: bool = False
    composed: bool = False


_GPT2_WORDS = Words((_GPT2,))
_LLAMA3_WORDS = Words((_LLAMA3,), whole=True, bos=True)
_QWEN2_WORDS = Words((_QWEN2,), composed=True)
_DIGITS_WORDS = Words((r"\p{N}", _GPT2))
WORDS = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "granite-docling"), _GPT2_WORDS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "midm-2.0", "pixtral"), _LLAMA3_WORDS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), Words((_LLAMA3,))),
    "glm4": Words((_LLAMA3,), whole=True),
    **dict.fromkeys(("qwen2", "megrez", "kormo"), _QWEN2_WORDS),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan"), Words((_QWEN2,))),
    "qwen35": Words((_QWEN35,)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"), _DIGITS_WORDS),
    "tekken": Words((_TEKKEN,), whole=True, bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), Words((_GPT4O,))),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file by id, and the kind of each."""

    tokens: Sequence[str]
    kinds: Sequence[int]

    def ids(self) -> dict[str, int]:
        """The ids of all tokens that may occur."""
        return {token: number for number, token in enumerate(self.tokens) if self.kinds[number] != UNUSED}

    def ends(self) -> list[int]:
        """The tokens that end an answer by their names."""
        return [
            number
            for number, token in enumerate(self.tokens)
            if token in ENDS and self.kinds[number] in (CONTROL, USER_DEFINED)
        ]


def read_tokenizer(metadata: Metadata, vocab_size: int) -> tuple[TokenizerFiles, tuple[int, ...]]:
    """The tokenizer, and the ids of the tokens that end an answer. Raises CheckpointError and UnsupportedModel."""
    model = metadata.text("tokenizer.ggml.model")
    vocabulary = _read_vocabulary(metadata, vocab_size)
    if model == "gpt2":
        content, bos = _byte_level(metadata, vocabulary)
    elif model in ("llama", "gemma4"):
        content, bos = _sentence_pieces(metadata, vocabulary, model)
    else:
        raise metadata.unsupported(f"a tokenizer of type {model!r} is not supported; supported: gemma4, gpt2, llama")
    bos_token, eos_token, pad_token, unk_token = (
        _named(metadata, vocabulary, f"{key}_token_id") for key in ("bos", "eos", "padding", "unknown")
    )
    for key in ("add_eos_token", "add_sep_token"):
        metadata.expect(f"tokenizer.ggml.{key}", False)
    adds_bos = metadata.flag("tokenizer.ggml.add_bos_token", bos)
    content["added_tokens"] = _added_tokens(vocabulary, content["model"]["vocab"], rstrip=_strips(metadata, model))
    content["post_processor"] = _with_bos(bos_token, vocabulary.ids()) if adds_bos and bos_token is not None else None
    ends = [metadata.optional_integer(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
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
    return files, tuple(dict.fromkeys([*(each for each in ends if each is not None), *vocabulary.ends()]))


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
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in words.patterns
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    content = {
        "normalizer": {"type": "NFC"} if words.composed else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "decoder": byte_level,
        "model": _bpe(vocabulary.ids(), _listed_merges(metadata), ignore_merges=words.whole),
    }
    return content, words.bos


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
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = next((token for token, kind in zip(tokens, vocabulary.kinds, strict=True) if kind == UNKNOWN), None)
    content = {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, spaces]}
        if prefix
        else spaces,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(vocabulary.ids(), merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }
    # The template of Gemma 4 writes the bos token.
    return content, model != "gemma4"


def _bpe(ids: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        **options, "vocab": ids, "merges": merges,
    }  # fmt: skip


def _listed_merges(metadata: Metadata) -> list[list[str]]:
    """Pairs, which the file joins by a space. A token may itself start with a space."""
    merges = []
    for merge in metadata.texts("tokenizer.ggml.merges"):
        at = merge.find(" ", 1)
        if at < 1:
            raise metadata.corrupt(f"'tokenizer.ggml.merges' has {merge!r}, expected two tokens")
        merges.append([merge[:at], merge[at + 1 :]])
    return merges


def implied_merges(vocabulary: Vocabulary, scores: Sequence[float] | None) -> list[list[str]]:
    """The merges of a SentencePiece vocabulary, which lists none: every pair of tokens that form a token, in the order
    of the merged tokens' ``scores``, or of their ids.
    """
    ids = {
        token: number
        for number, token in enumerate(vocabulary.tokens)
        if vocabulary.kinds[number] in (NORMAL, USER_DEFINED)
    }
    ranked = []
    for token, number in ids.items():
        rank = float(number) if scores is None else -float(scores[number])
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in ids and right in ids:
                ranked.append((rank, ids[left], ids[right], left, right))
    return [[left, right] for *_, left, right in sorted(ranked)]


def _strips(metadata: Metadata, model: str) -> bool:
    """Whether control tokens include the white space after them, as in Phi-3."""
    return model == "llama" and metadata.architecture == "phi3"


def _added_tokens(vocabulary: Vocabulary, ids: dict[str, int], *, rstrip: bool) -> list[dict[str, Any]]:
    """The tokens that are found in a text before it is split: special and user-defined tokens."""
    added = []
    for number, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        is_special = kind in (CONTROL, UNKNOWN)
        # Gemma's runs of spaces are ordinary tokens.
        if not (is_special or kind == USER_DEFINED) or not token or token not in ids:
            continue
        strips = rstrip and is_special and token not in ("<unk>", "<s>", "<|endoftext|>")
        added.append(
            {
                "id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": strips,
                "normalized": False, "special": is_special,
            }
        )  # fmt: skip
    return added


def _with_bos(bos: str, ids: dict[str, int]) -> dict[str, Any]:
    """A template that starts each text with the bos token."""
    token = {"SpecialToken": {"id": bos, "type_id": 0}}
    texts: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [token, texts[0]],
        "pair": [token, texts[0], token, texts[1]],
        "special_tokens": {bos: {"id": bos, "ids": [ids[bos]], "tokens": [bos]}},
    }
