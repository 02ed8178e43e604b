"""TokenizerFiles: what a tokenizer is made of, whichever checkpoint or bundle it comes from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, reason_of


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The input of a tokenizer: the ``content`` of tokenizer.json with the tokens that other files add, the file that
    errors name, and the values of tokenizer_config.json.

    ``add_bos_token`` None: tokenizer.json determines whether a text starts with the bos token.
    """

    where: Path
    content: bytes = field(repr=False)
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    add_bos_token: bool | None = None

    @property
    def special_tokens(self) -> dict[str, str]:
        """The tokens that a chat template may use, by the names of its variables."""
        named = {
            "bos_token": self.bos_token,
            "eos_token": self.eos_token,
            "pad_token": self.pad_token,
            "unk_token": self.unk_token,
        }
        return {name: text for name, text in named.items() if text is not None}

    @staticmethod
    def at(path: Path, chat_template: str | None = None, **special: Any) -> TokenizerFiles:
        """The source for the tokenizer.json at ``path``. Raises CheckpointError."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {reason_of(error)}; download it again") from error
        return TokenizerFiles(path, content, chat_template, **special)


def load_backend(content: bytes, where: Path) -> Any:
    """The tokenizer of a tokenizer.json, from the tokenizers library. Raises CheckpointError."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(content)
    # tokenizers raises bare Exception. A panic of its Rust code is a BaseException whose class cannot be imported.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"{where}: cannot be loaded as a tokenizer: {error}; download it again", file=str(where)
        ) from error
