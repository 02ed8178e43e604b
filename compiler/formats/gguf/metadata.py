"""Typed access to the metadata of a GGUF file. Every key of the architecture must be read, because an unknown key may
change the mathematics.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from ...arch.decoder_config import MAX_LAYERS
from ...runtime.errors import CheckpointError, RequestError, UnsupportedModel
from ..config import IGNORE
from .container import Container


class Metadata:
    """Keys without a section belong to the file's architecture: "block_count" is "llama.block_count". ``skipped``:
    unknown keys that the user wants to ignore, with their section.
    """

    def __init__(self, container: Container, skipped: Collection[str] = ()) -> None:
        self._values, self.path = container.metadata, container.path
        self._skipped = frozenset(skipped)
        self._read: set[str] = set()
        self.architecture = ""
        self.architecture = self.text("general.architecture")

    def has(self, key: str) -> bool:
        return self._full(key) in self._values

    def size(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1, like `integer`."""
        value = self.integer(key, default)
        if value < 1:
            raise self._wrong(key, value, "an integer of at least 1")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer of at least 0; an array of one value for all layers counts as that value."""
        value = _same_for_all(self._take(key, default))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, value, "an integer, the same for all layers")
        return value

    @property
    def layers(self) -> int:
        value = self.size("block_count")
        if value > MAX_LAYERS:
            raise self._wrong("block_count", value, f"at most {MAX_LAYERS}")
        return value

    def of_layers(self, key: str, default: int | None = None) -> list[int]:
        """An integer of at least 0 for each of the layers, which may share one."""
        layers, value = self.layers, self._take(key, default)
        if not isinstance(value, np.ndarray):
            return [self.integer(key, default)] * layers
        if len(value) != layers or value.dtype.kind not in "iub" or value.min() < 0:
            raise self._wrong(key, value, f"an integer for each of {layers} layers")
        return [int(each) for each in value]

    def numbers_of_layers(self, key: str) -> list[float]:
        """A finite number for each of the layers, which may share one."""
        layers, value = self.layers, self._take(key, None)
        values = np.full(layers, value) if isinstance(value, float) else value
        if not isinstance(values, np.ndarray) or len(values) != layers or not np.isfinite(values).all():
            raise self._wrong(key, value, f"a finite number for each of {layers} layers")
        return [float(each) for each in values]

    def number(self, key: str, default: float | None = None) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if value <= 0:
            raise self._wrong(key, value, "a finite number above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def optional_text(self, key: str) -> str | None:
        return self.text(key) if self.has(key) else None

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.has(key) else None

    def texts(self, key: str) -> list[str]:
        value = self._take(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of texts")
        return value

    def numbers(self, key: str) -> np.ndarray[Any, Any] | None:
        """An array of numbers; None if the key is absent."""
        if not self.has(key):
            return None
        value = self._take(key, None)
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, value, "a list of numbers")
        return value

    def ignore(self, *keys: str) -> None:
        """Mark keys as read that do not change the logits."""
        self._read.update(map(self._full, keys))

    def expect(self, key: str, *values: object) -> None:
        """Raises UnsupportedModel if the key is present with another value."""
        if not self.has(key):
            return
        value = _same_for_all(self._take(key, None))
        if isinstance(value, np.ndarray) or value not in values:
            raise UnsupportedModel(
                f"{self.path}: {self._full(key)!r} is {value!r}, which is not supported; supported: "
                f"{', '.join(map(repr, values))}",
                file=str(self.path), key=key,
            )  # fmt: skip

    def expect_unread(self, key: str, *values: object) -> None:
        """As `expect`, unless the key was read."""
        if self._full(key) not in self._read:
            self.expect(key, *values)

    def finish(self) -> None:
        """Raises UnsupportedModel for a key of the architecture that was neither read nor skipped, RequestError for one
        that was read and skipped.
        """
        for key in sorted(self._skipped & self._read & self._values.keys()):
            raise RequestError(
                f"{IGNORE} {key}: {self.path}: the compiler reads {key!r}, because the model's mathematics or the "
                "shapes of its weights depend on it; remove the option",
                key=key,
            )
        prefix = f"{self.architecture}."
        unread = sorted(key for key in self._values if key.startswith(prefix) and key not in self._read | self._skipped)
        if unread:
            raise UnsupportedModel(
                f"{self.path}: {unread[0]!r} is not known for this architecture, and may change what the model "
                f"computes; if you know that it does not, add {IGNORE} {unread[0]}; otherwise pass the Hugging Face "
                "folder that the file was made from",
                file=str(self.path), key=unread[0],
            )  # fmt: skip

    def corrupt(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {message}; the file is corrupt, download it again", file=str(self.path))

    def unsupported(self, message: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.path}: {message}", file=str(self.path))

    def _full(self, key: str) -> str:
        if key.startswith(("general.", "tokenizer.", "split.", "xielu.")):
            return key
        return f"{self.architecture}.{key}"

    def _take(self, key: str, default: Any) -> Any:
        full = self._full(key)
        self._read.add(full)
        if full in self._values:
            return self._values[full]
        if default is None:
            raise CheckpointError(
                f"{self.path}: {full!r} is missing; the file is incomplete, download it again",
                file=str(self.path), key=full,
            )  # fmt: skip
        return default

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return CheckpointError(
            f"{self.path}: {self._full(key)!r} is {shown}, expected {expected}; download it again",
            file=str(self.path), key=key,
        )  # fmt: skip


def _same_for_all(value: Any) -> Any:
    """The number that an array repeats for all layers; any other value as it is."""
    if isinstance(value, np.ndarray) and len(value) and (value == value[0]).all():
        return value[0].item()
    return value
