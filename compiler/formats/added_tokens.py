"""Adds tokens that other files than tokenizer.json declare, with the same ids as transformers' AutoTokenizer.

The files are tokenizer_config.json (`added_tokens_decoder`, `extra_special_tokens`, `additional_special_tokens`,
`bos_token` and the like). If it has no `added_tokens_decoder`, special_tokens_map.json and added_tokens.json are read
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..runtime.errors import CheckpointError
from .config import is_integer
from .json_file import json_kind, read_json_object

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Default = TypeVar("Default", bound=bool | None)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class DeclaredToken:
    """``token_id`` None: the next free id. ``file`` and ``key`` are the location of the declaration."""

    content: str
    file: Path
    key: str
    token_id: int | None = None
    flags: Mapping[str, bool] = field(default_factory=lambda: {"special": True})


def add_declared_tokens(backend: Any, declared: Iterable[DeclaredToken], vocab_size: int) -> bool:
    """Add tokens to a tokenizer of the tokenizers library. Returns whether that changed the tokenizer.

    Raises CheckpointError for a token whose id differs from the declared one, or is outside of the model's vocabulary.
    """
    from tokenizers import AddedToken

    tokens = list(declared)
    before = _added(backend)
    backend.add_tokens([AddedToken(token.content, **token.flags) for token in tokens])
    for token in tokens:
        token_id = backend.token_to_id(token.content)
        where = f"{token.file}: {token.key!r}: token {token.content!r}"
        if token_id is None:
            raise CheckpointError(
                f"{where} cannot be added to the tokenizer; remove it", file=str(token.file), token=token.content
            )
        if token.token_id not in (None, token_id):
            raise CheckpointError(
                f"{where} has id {token.token_id}, but the tokenizer gives it id {token_id}; "
                "use files of the same version",
                file=str(token.file), token=token.content,
            )  # fmt: skip
        if token_id >= vocab_size:
            raise CheckpointError(
                f"{where} has id {token_id}, but the model's vocabulary has {vocab_size} ('vocab_size' in "
                "config.json); "
                "remove the token, or use the tokenizer files that belong to this model",
                file=str(token.file), token=token.content,
            )  # fmt: skip
    return _added(backend) != before


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """tokenizer_config.json of the folder ``path``; values of the older special_tokens_map.json replace its own."""

    path: Path
    values: Mapping[str, Any]
    from_map: Mapping[str, Any]

    def has(self, key: str) -> bool:
        return key in self.from_map or key in self.values

    def get(self, key: str) -> Any:
        return self.from_map[key] if key in self.from_map else self.values.get(key)

    def file(self, key: str) -> Path:
        return self.path / ("special_tokens_map.json" if key in self.from_map else "tokenizer_config.json")

    def token_text(self, key: str) -> str | None:
        """The text of a token such as bos_token, which is a string or an object with "content". Raises
        CheckpointError.
        """
        return _token_text(self.file(key), key, self.get(key))

    def special(self, key: str, ids: Mapping[str, int], vocabulary: str) -> str:
        """The text of a token such as cls_token. Raises CheckpointError if it has no id in the file ``vocabulary``."""
        token = self.token_text(key)
        if token is None or token not in ids:
            file = self.path / vocabulary
            raise CheckpointError(
                f"{file}: has no token {token!r}, which is the {key!r}; download it again", file=str(file), key=key
            )
        return token

    def flag(self, key: str, default: Default) -> bool | Default:
        """True or false; ``default`` for no value or null. Raises CheckpointError for a value of another type."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            file = self.path / "tokenizer_config.json"
            raise CheckpointError(
                f"{file}: {key!r} is {value!r} ({json_kind(value)}), expected true or false", file=str(file), key=key
            )
        return value


def read_tokenizer_config(path: Path) -> TokenizerConfig:
    """Raises CheckpointError."""
    config = _object(path / "tokenizer_config.json")
    # Newer files are complete, so transformers does not read the older files beside them.
    from_map = {} if "added_tokens_decoder" in config else _object(path / "special_tokens_map.json")
    return TokenizerConfig(path, config, from_map)


def declared_tokens(config: TokenizerConfig, known: Iterable[str]) -> list[DeclaredToken]:
    """The tokens that the files declare, in the order in which they get their ids. Tokens with an empty text are left
    out.

    ``known``: the added tokens of tokenizer.json. Raises CheckpointError for values of the wrong type.
    """
    named, extra = list(_named(config)), list(_extra(config))
    if "added_tokens_decoder" in config.values:
        numbered = list(_added_tokens_decoder(config, {token.content for token in named}))
    else:
        numbered = list(
            _added_tokens_json(config.path / "added_tokens.json", {token.content for token in (*named, *extra)})
        )
    declared = sorted((token for token in numbered if token.content), key=lambda token: token.token_id or 0)
    seen = {*known, *(token.content for token in declared), ""}
    for token in (*named, *extra):
        if token.content not in seen:
            seen.add(token.content)
            declared.append(token)
    return declared


def _token_text(file: Path, key: str, value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    if text is None and value is None:
        return None
    if not isinstance(text, str):
        raise _wrong(file, key, value, "a string or an object with 'content'")
    return text


def _named(config: TokenizerConfig) -> Iterator[DeclaredToken]:
    """bos_token and similar keys, and a model's own keys that end in "_token"."""
    keys = dict.fromkeys((*config.values, *config.from_map))
    own = [key for key in keys if key.endswith("_token") and key not in NAMED and isinstance(config.get(key), str)]
    for key in (*NAMED, *own):
        if (token := _special(config.file(key), key, config.get(key))) is not None:
            yield token


def _extra(config: TokenizerConfig) -> Iterator[DeclaredToken]:
    key = "extra_special_tokens" if config.get("extra_special_tokens") else "additional_special_tokens"
    value = config.get(key)
    if not isinstance(value, list | dict | None):
        raise _wrong(config.file(key), key, value, "a list of tokens")
    for item in value.values() if isinstance(value, dict) else value or ():
        token = _special(config.file(key), key, item)
        if token is None:
            raise _wrong(config.file(key), key, value, "a list of tokens")
        yield token


def _special(file: Path, key: str, value: object) -> DeclaredToken | None:
    text = _token_text(file, key, value)
    flags = _flags(file, key, value) if isinstance(value, dict) else {}
    return None if text is None else DeclaredToken(text, file, key, flags={**flags, "special": True})


def _added_tokens_decoder(config: TokenizerConfig, special: set[str]) -> Iterator[DeclaredToken]:
    key = "added_tokens_decoder"
    file, value = config.file(key), config.values[key]
    if not isinstance(value, dict):
        raise _wrong(file, key, value, "an object")
    for number, token in value.items():
        text = _token_text(file, key, token) if isinstance(token, dict) else None
        if text is None or not (number.isascii() and number.isdigit() and len(number) < 16):
            raise _wrong(file, key, {number: token}, "token ids, each with an object")
        flags = _flags(file, key, token)
        yield DeclaredToken(
            text, file, key, int(number), {**flags, "special": flags.get("special", False) or text in special}
        )


def _added_tokens_json(file: Path, special: set[str]) -> Iterator[DeclaredToken]:
    for text, number in _object(file).items():
        if not is_integer(number) or number < 0:
            raise _wrong(file, text, number, "a token id")
        yield DeclaredToken(text, file, text, number, {"normalized": text not in special, "special": text in special})


def _flags(path: Path, key: str, token: Mapping[str, Any]) -> dict[str, bool]:
    flags = {name: token[name] for name in _FLAGS if name in token}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise _wrong(path, key, token, f"true or false under {', '.join(flags)}")
    return flags


def _object(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _added(backend: Any) -> dict[int, str]:
    return {token_id: repr(token) for token_id, token in backend.get_added_tokens_decoder().items()}


def _wrong(path: Path, key: str, value: object, expected: str) -> CheckpointError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return CheckpointError(
        f"{path}: {key!r} is {shown}, expected {expected}; download it again", file=str(path), key=key
    )
