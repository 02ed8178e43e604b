"""ConfigReader: typed access to a checkpoint's config.json that records which keys were read.

A caller reads all keys that it understands and then calls `finish`. A key that was not read is an error, because an
unknown key may change the mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeGuard

from ..nearest import did_you_mean
from ..runtime.errors import CheckpointError, RequestError, UnsupportedModel
from .json_file import json_kind

# The option with which a user states that a key changes nothing.
IGNORE = "--ignore-key"
# They say how weights are packed, so without them codes would be read as weights.
PACKING_KEYS = ("quantization_config", "quantization", "compression_config")
MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
_FIX = "correct the file or download it again"


class ConfigReader:
    """Values of one JSON object by key. All errors name the file, the key and the actual value. ``skipped``: unknown
    keys that the user wants to ignore, here and in sections.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str = "config.json", skipped: Collection[str] = frozenset()
    ) -> None:
        self.where = where
        self._values = dict(values)
        self._skipped = frozenset(skipped)
        # The names in the file of keys that `renamed` has given others.
        self._written: Mapping[str, str] = {}
        self._read: set[str] = set()
        self._ignored: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is present, with null or a value. Does not consume it."""
        return key in self._values

    def keys(self) -> tuple[str, ...]:
        """The keys that are present. Does not consume them."""
        return tuple(self._values)

    def integer(self, key: str, *, minimum: int = 1, default: int | None = None) -> int:
        """An integer of at least ``minimum``; an absent key gives the default, or is an error without a default."""
        value = self._take(key, default)
        if not is_integer(value) or value < minimum:
            raise self._wrong(key, value, "a positive integer" if minimum == 1 else f"an integer of at least {minimum}")
        return int(value)

    def optional_integer(self, key: str, *, minimum: int = 1, absent: int | None = None) -> int | None:
        """Like `integer`; null gives None, and an absent key ``absent``."""
        if self._is_null(key):
            return None if self.has(key) else absent
        return self.integer(key, minimum=minimum)

    def number(self, key: str, *, default: float | None = None, or_zero: bool = False) -> float:
        """A finite number above zero, or zero if ``or_zero``; an absent key gives the default, or is an error without a
        default.
        """
        value = self._take(key, default)
        is_number = (is_integer(value) or isinstance(value, float)) and _is_finite(value)
        if not is_number or value < 0 or (value == 0 and not or_zero):
            raise self._wrong(key, value, "a finite number above zero" + (", or zero" if or_zero else ""))
        return float(value)

    def optional_number(self, key: str, *, absent: float | None = None) -> float | None:
        """Like `number`; null gives None, and an absent key ``absent``."""
        if self._is_null(key):
            return None if self.has(key) else absent
        return self.number(key)

    def flag(self, key: str, *, default: bool | None = None) -> bool:
        """true or false; an absent key gives the default, or is an error without a default."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def optional_flag(self, key: str) -> bool | None:
        """Like `flag`; an absent key and null give None."""
        return None if self._is_null(key) else self.flag(key)

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string; an absent key gives the default, or is an error without a default."""
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """Like `text`; an absent key and null give None."""
        return None if self._is_null(key) else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; an absent key and null give ()."""
        if self._is_null(key):
            return ()
        value = self._take(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def numbers(self, key: str, *, or_zero: bool = False) -> tuple[float, ...]:
        """A list of finite numbers above zero, or zero if ``or_zero``. An absent key is an error."""
        value = self._take(key, None)
        valid = isinstance(value, list) and all(
            (is_integer(item) or isinstance(item, float)) and _is_finite(item) and (item > 0 or (or_zero and item == 0))
            for item in value
        )
        if not valid:
            raise self._wrong(key, value, "a list of finite numbers above zero" + (", or zero" if or_zero else ""))
        return tuple(map(float, value))

    def pairs(self, key: str) -> tuple[tuple[int, int], ...]:
        """A list of pairs of integers of at least 0. An absent key is an error."""
        value = self._take(key, None)
        is_pair = lambda item: isinstance(item, list) and len(item) == 2 and all(is_integer(n) and n >= 0 for n in item)  # noqa: E731
        if not isinstance(value, list) or not all(map(is_pair, value)):
            raise self._wrong(key, value, "a list of pairs of integers of at least 0")
        return tuple((int(first), int(second)) for first, second in value)

    def optional_numbers(self, key: str) -> tuple[float, ...] | None:
        """Like `numbers`, or zero; an absent key and null give None."""
        return None if self._is_null(key) else self.numbers(key, or_zero=True)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of integers; an absent key and null give None."""
        if self._is_null(key):
            return None
        value = self._take(key, None)
        if not isinstance(value, list) or not all(map(is_integer, value)):
            raise self._wrong(key, value, "a list of integers")
        return tuple(value)

    def optional_texts(self, key: str) -> tuple[str, ...] | None:
        """Like `texts`; an absent key and null give None."""
        return None if self._is_null(key) else self.texts(key)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of token ids, in order and without duplicates; an absent key and null give ()."""
        if self._is_null(key):
            return ()
        value = self._take(key, None)
        ids = value if isinstance(value, list) else [value]
        if not all(is_integer(item) and item >= 0 for item in ids):
            raise self._wrong(key, value, "a token id or a list of token ids")
        return tuple(dict.fromkeys(ids))

    def section(self, key: str) -> ConfigReader | None:
        """The object under a key, with its own `finish`; an absent key and null give None."""
        if self._is_null(key):
            return None
        value = self._take(key, None)
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return ConfigReader(value, f"{self.where}: {key}", self._skipped)

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigReader:
        """The same reader, with defaults for absent keys."""
        return self._with({**defaults, **self._values})

    def with_values(self, values: Mapping[str, Any]) -> ConfigReader:
        """The same reader, with other values of keys."""
        return self._with({**self._values, **values})

    def renamed(self, names: Mapping[str, str]) -> ConfigReader:
        """The same reader, with the values of the keys in ``names`` under other keys. Errors name those of the file.

        Raises CheckpointError if two keys with one meaning have different values.
        """
        values: dict[str, Any] = {}
        for key, value in self._values.items():
            name = names.get(key, key)
            if not _same_json(values.setdefault(name, value), value):
                first = next(each for each in self._values if names.get(each, each) == name)
                raise self.contradiction(
                    key, f"{key!r} is {_show(value)}, but {first!r}, which means the same, is {_show(values[name])}"
                )
        written: dict[str, str] = {}
        for key, name in names.items():
            if self.has(key) or (name not in written and (not self.has(name) or name in names)):
                written[name] = self._written.get(key, key)
        reader = self._with(values)
        reader._written = {**self._written, **written}
        return reader

    def _with(self, values: Mapping[str, Any]) -> ConfigReader:
        """A reader of other values. What was read is read."""
        reader = ConfigReader(values, self.where, self._skipped)
        reader._written, reader._read, reader._ignored = self._written, set(self._read), set(self._ignored)
        return reader

    def reaches(self, key: str, least: int) -> bool:
        """Whether the key holds an integer of at least ``least``. Does not consume it."""
        value = self._values.get(key)
        return is_integer(value) and value >= least

    def ignore(self, *keys: str) -> None:
        """Accept any values under keys that have no effect, given the values that were read."""
        self._ignored.update(keys)

    def expect(self, key: str, *allowed: object) -> None:
        """Raise UnsupportedModel unless the key is absent or holds one of these values, the only ones that we compile.

        If false is allowed, null is allowed too.
        """
        if not self.has(key):
            return
        value = self._take(key, None)
        if value is None and any(each is False for each in allowed):
            return
        if not any(_same_json(value, each) for each in allowed):
            supported = " or ".join(_show(each) for each in allowed)
            raise self.unsupported(key, f"{key!r} is {_show(value)}, which is not supported; supported: {supported}")

    def unsupported(self, key: str, message: str) -> UnsupportedModel:
        """The error for a valid value that needs mathematics that we do not compile. The caller raises it."""
        return UnsupportedModel(f"{self.where}: {self._worded(message)}", file=self.where, key=self._name(key))

    def contradiction(self, key: str, message: str) -> CheckpointError:
        """The error for a value that contradicts others, or is no such value. The caller raises it."""
        return CheckpointError(f"{self.where}: {self._worded(message)}; {_FIX}", file=self.where, key=self._name(key))

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """Raise UnsupportedModel for a key that was not read, unless it is in ``ignored``, the keys that do not change
        the mathematics, or the user skips it; RequestError for a key that the user skips and that was read.

        A key that is null or false has no effect.
        """
        for key in sorted(self._skipped & self._read & self._values.keys()):
            raise RequestError(
                f"{IGNORE} {key}: {self.where}: the compiler reads {key!r}, because the model's mathematics or the "
                "shapes of its weights depend on it; remove the option, and correct the file if the value "
                f"{_show(self._values[key])} is wrong",
                key=key,
            )
        unread = self._values.keys() - self._read - self._ignored - ignored - self._skipped
        unknown = sorted(key for key in unread if self._values[key] is not None and self._values[key] is not False)
        if not unknown:
            return
        for key in PACKING_KEYS:
            if key in unknown:
                raise self._packed(key)
        shown = ", ".join(f"{key!r} = {_show(self._values[key])}" for key in unknown)
        options = " ".join(f"{IGNORE} {key}" for key in unknown)
        raise UnsupportedModel(
            f"{self.where}: unknown {'key' if len(unknown) == 1 else 'keys'} {shown}; the compiler does not know the "
            "effect, so the answers could be wrong; if you know that the model's mathematics does not depend on "
            f"{'it' if len(unknown) == 1 else 'them'}, add {options}",
            file=self.where,
            keys=unknown,
        )

    def _packed(self, key: str) -> UnsupportedModel:
        section = self._values[key]
        method = section.get("quant_method", "unnamed") if isinstance(section, dict) else "unnamed"
        return self.unsupported(
            key,
            f"the checkpoint's weights are already quantized ({key!r}, method {method!r}), which is not supported "
            "here, and without this key they would be misread; pass the unquantized checkpoint that it was made from",
        )

    def _take(self, key: str, default: object) -> Any:
        self._read.add(key)
        if key in self._values:
            return self._values[key]
        if default is None:
            raise self.contradiction(key, f"{key!r} is missing")
        return default

    def _is_null(self, key: str) -> bool:
        self._read.add(key)
        return self._values.get(key) is None

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        return self.contradiction(key, f"{key!r} is {_show(value)} ({json_kind(value)}), expected {expected}")

    def _name(self, key: str) -> str:
        return self._written.get(key, key)

    def _worded(self, message: str) -> str:
        """A message with the file's names of the keys that it quotes."""
        return re.sub(r"'(\w+)'", lambda quoted: repr(self._name(quoted[1])), message) if self._written else message


def require_skippable(skipped: Collection[str], values: Mapping[str, Any], where: str) -> None:
    """Raises RequestError for a key that must not be skipped, and for one that the file does not have at any depth,
    which is then ``details["missing_key"]``.
    """
    for key in skipped:
        if key in PACKING_KEYS:
            raise RequestError(
                f"{IGNORE} {key}: it says how the weights are packed, and without it they would be misread; pass the "
                "unquantized checkpoint that it was made from",
                key=key,
            )
        if key not in (known := set(_all_keys(values))):
            raise RequestError(f"{IGNORE} {key}: {where} has no such key{did_you_mean(key, known)}", missing_key=key)


def _all_keys(values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        yield key
        if isinstance(value, Mapping):
            yield from _all_keys(value)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a parsed value is a JSON integer that every reader represents exactly."""
    # In Python, True is an int; in JSON it is not. Every JSON reader represents integers up to 2**53 exactly.
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 2**53


def _is_finite(value: float) -> bool:
    """Whether it is finite in float32, with which models compute."""
    return abs(float(value)) <= MAX_FLOAT32


def _same_json(left: object, right: object) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _show(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
