"""Makes the tokenizer.json of an encoder whose folder has only a SentencePiece model, as transformers converts it
(convert_slow_tokenizer.py, and the classes in models/*/tokenization_*.py): XLM-RoBERTa's, DeBERTa's and ALBERT's.

They differ from SentencePiece itself in the special tokens, in what is done to a text before the model's own
normalization, and in XLM-RoBERTa's ids, which are fairseq's. transformers 5.24 opens a DeBERTa without the model's
normalization, which its converter and the tokenizer.json of finetunes have; this tokenizer has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..runtime.errors import CheckpointError, UnsupportedModel
from .added_tokens import NAMED, TokenizerConfig
from .sentencepiece_model import UNIGRAM, SentencePieceModel, read_sentencepiece
from .tokenizer_json import CONTROL, UNKNOWN, Vocabulary, added_tokens, around_texts, scored_pieces

XLM_ROBERTA, DEBERTA, ALBERT = "sentencepiece.bpe.model", "spm.model", "spiece.model"
# The first tokens of fairseq, and how many of SentencePiece's they replace: it has no padding.
FIRST_TOKENS = ("bos_token", "pad_token", "eos_token", "unk_token")
REPLACED_KINDS = [UNKNOWN, CONTROL, CONTROL]
REPLACED = len(REPLACED_KINDS)
# Taken from the score of a number with a comma behind it, so that ALBERT reads two pieces.
COMMA_SCORE = 100.0
AS_JSON = "write tokenizer.json with AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"


def xlm_roberta(config: TokenizerConfig) -> dict[str, Any]:
    """Raises CheckpointError and UnsupportedModel, as all functions here."""
    model = _read(config, XLM_ROBERTA)
    if model.vocabulary.kinds[:REPLACED] != REPLACED_KINDS:
        raise UnsupportedModel(
            f"{model.where}: its first pieces are {', '.join(map(repr, model.vocabulary.tokens[:REPLACED]))}, and "
            f"those of XLM-RoBERTa are the unknown token and two control tokens; use the {XLM_ROBERTA} of this model",
            file=str(model.where),
        )
    first = [config.token_text(key) or "" for key in FIRST_TOKENS]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN, *model.vocabulary.kinds[REPLACED:]]
    vocabulary = Vocabulary([*first, *model.vocabulary.tokens[REPLACED:]], kinds)
    scores = [0.0] * len(first) + list(model.scores[REPLACED:])
    unknown = FIRST_TOKENS.index("unk_token")
    parts = scored_pieces(list(zip(vocabulary.tokens, scores, strict=True)), unknown, model.charsmap)
    return _tokenizer(config, XLM_ROBERTA, vocabulary, parts, around=("bos_token", "eos_token"))


def deberta(config: TokenizerConfig) -> dict[str, Any]:
    model = _read(config, DEBERTA)
    lower = [{"type": "Lowercase"}] if config.flag("do_lower_case", False) else []
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    one_space = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    split = [{"type": "Punctuation", "behavior": "Isolated"}] if config.flag("split_by_punct", False) else []
    parts = _own_pieces(model, model.scores)
    own = [parts["normalizer"]] if parts["normalizer"] else []
    parts["normalizer"] = {"type": "Sequence", "normalizers": [*lower, strip, *own, one_space]}
    parts["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [*split, parts["decoder"]]}
    return _tokenizer(config, DEBERTA, model.vocabulary, parts)


def albert(config: TokenizerConfig) -> dict[str, Any]:
    model = _read(config, ALBERT)
    before: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": quotes}, "content": '"'} for quotes in ("``", "''")
    ]
    if not config.flag("keep_accents", False):
        before += [{"type": "NFKD"}, {"type": "StripAccents"}]
    if config.flag("do_lower_case", True):
        before.append({"type": "Lowercase"})
    scores = [
        score - COMMA_SCORE if token.endswith(",") and token[-2:-1].isdigit() else score
        for token, score in zip(model.vocabulary.tokens, model.scores, strict=True)
    ]
    parts = _own_pieces(model, scores)
    own = [parts["normalizer"]] if parts["normalizer"] else []
    parts["normalizer"] = {"type": "Sequence", "normalizers": [*before, *own]}
    return _tokenizer(config, ALBERT, model.vocabulary, parts)


def _own_pieces(model: SentencePieceModel, scores: Sequence[float]) -> dict[str, Any]:
    pieces = list(zip(model.vocabulary.tokens, scores, strict=True))
    return scored_pieces(pieces, model.trainer["unk_id"], model.charsmap)


def _tokenizer(
    config: TokenizerConfig,
    file: str,
    vocabulary: Vocabulary,
    parts: dict[str, Any],
    around: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """``around``: the names of the tokens around a text, two of which are between those of a pair. None: [CLS] and
    [SEP], of which one is.
    """
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        path = config.path / file
        raise CheckpointError(f"{path}: has a special token among its other pieces; download it again", file=str(path))
    first, last = (config.special(key, ids, file) for key in around or ("cls_token", "sep_token"))
    # Tokens with a name of their own are added with the flags that tokenizer_config.json gives them.
    named = [config.token_text(key) or "" for key in NAMED]
    return {
        "version": "1.0",
        "added_tokens": added_tokens(vocabulary, without=named),
        **parts,
        "post_processor": around_texts(first, last, ids, doubled=around is not None),
    }


def _read(config: TokenizerConfig, file: str) -> SentencePieceModel:
    model = read_sentencepiece(config.path / file)
    for path, key, found, expected in (
        (model.where, "model_type", model.trainer["model_type"], UNIGRAM),
        (model.where, "byte_fallback", model.trainer["byte_fallback"], 0),
        (config.file("add_prefix_space"), "add_prefix_space", config.flag("add_prefix_space", True), True),
    ):
        if found != expected:
            raise UnsupportedModel(
                f"{path}: {key!r} is {found}, which is not supported for {file}; supported: {expected}; {AS_JSON}",
                file=str(path), key=key,
            )  # fmt: skip
    return model
