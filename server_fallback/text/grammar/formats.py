"""The formats of JSON Schema strings as patterns, alone and beside a ``pattern`` of the schema."""

from __future__ import annotations

from nearfar.compiler.errors import RequestError

from .automaton import Intersection, Language
from .regex import parse_regex
from .schema_merge import json_text

_DATE = r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# These have few counts, because each count is a state, and compiling tries the entire vocabulary on each state.
_WORD = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,14}[A-Za-z0-9])?"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"

_HEX_GROUP = "[0-9a-f]{1,4}"
# Networks whose address has no bits after the prefix.
_NETWORK = rf"{_BYTE}\.(0\.0\.0/8|{_BYTE}\.(0\.0/16|{_BYTE}\.(0/24|{_BYTE}/32)))"

# Each pattern allows only texts of the format, but not all of them: a date is never the 29th of February.
# RFC 3339, RFC 4122, RFC 5321, RFC 1123, RFC 2673, RFC 4291, RFC 3986.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(\d{1,4}W|\d{1,4}D|\d{1,4}Y|\d{1,4}M|(\d{1,4}D)?T(\d{1,4}H|\d{1,4}M|\d{1,4}S))",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@({_WORD}\.)+[A-Za-z]{{2,6}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,2}}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "ipv6": rf"({_HEX_GROUP}:){{7}}{_HEX_GROUP}",
    "uri": rf"https?://{_WORD}(\.{_WORD})*(:[1-9]\d{{0,3}})?(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9._~=&-]*)?"
    r"(#[A-Za-z0-9._~-]*)?",
    # pydantic's names.
    **{
        f"uuid{version}": f"[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}"
        for version in (1, 3, 4, 5, 6, 7, 8)
    },
    "base64": "([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?",
    "base64url": "([A-Za-z0-9_-]{4})*([A-Za-z0-9_-][AQgw]==|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?",
    "ipvanyaddress": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    **dict.fromkeys(("ipv4network", "ipvanynetwork"), _NETWORK),
    **dict.fromkeys(("ipv4interface", "ipvanyinterface"), _NETWORK),
}

# The texts of `short_uri` have at most this many characters.
SHORT_URI_LENGTH = 226
_SHORT_URI = rf"https?://{_LABEL}(\.{_LABEL}){{0,3}}(/[A-Za-z0-9._~=&?/-]{{0,150}})?"

# pydantic's names for its types that accept every text: bytes, SecretStr and Path.
UNRESTRICTED = frozenset(("binary", "password", "path"))

_LEAP_YEAR = r"(\d\d[2468][048]|\d\d[13579][26]|\d\d0[48]|[02468][048]00|[13579][26]00)"
_ANY_DATE = f"({_LEAP_YEAR}-02-29|{_DATE})"
_ANY_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_LABELS = "[A-Za-z0-9]+(-+[A-Za-z0-9]+)*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_GROUP = "[0-9a-fA-F]{1,4}"
_GROUP_AT_END = f":{_GROUP}"

# The texts that a format allows beside a pattern. These formats have texts that libraries' patterns allow and FORMATS
# leaves out.
_BESIDE_PATTERN = {
    "date": _ANY_DATE,
    "time": _ANY_TIME,
    "date-time": f"{_ANY_DATE}[Tt]{_ANY_TIME}",
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "email": rf"{_ATOM}(\.{_ATOM})*@{_LABELS}(\.{_LABELS})*",
    "ipv6": "|".join(
        [
            f"({_GROUP}:){{7}}{_GROUP}",
            f"({_GROUP}:){{1,7}}:",
            *(f"({_GROUP}:){{1,{7 - after}}}({_GROUP_AT_END}){{1,{after}}}" for after in range(1, 7)),
            f":(({_GROUP_AT_END}){{1,7}}|:)",
        ]
    ),
}

# Names that are not formats of JSON Schema. Zod writes them beside the pattern that defines them.
_DEFINED_BY_PATTERN = frozenset(
    (
        *("base64", "base64url", "cidrv4", "cidrv6", "cuid", "cuid2", "e164", "ends_with", "includes", "ksuid"),
        *("lowercase", "mac", "nanoid", "starts_with", "template_literal", "ulid", "uppercase", "xid"),
    )
)

# Zod's patterns with lookahead, which grammars do not support. Each text of FORMATS matches them.
_IMPLIED_PATTERNS = {
    "duration": r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
    "hostname": r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$",
}


def short_uri(where: str) -> Language:
    """URIs for schemas with a maxLength of at least SHORT_URI_LENGTH, such as pydantic's HttpUrl."""
    return parse_regex(_SHORT_URI, where)


def string_language(pattern: object, form: object, where: str) -> Language | Intersection:
    """The texts that match ``pattern`` and have the format ``form``; at least one of them is not None.

    Raises RequestError for a pattern or a format that a grammar cannot enforce; ``where`` names the schema.
    """
    if pattern is not None and not isinstance(pattern, str):
        raise RequestError(f"{where}.pattern must be a string")
    if form is None and pattern is not None:
        return parse_regex(pattern, f"{where}.pattern", search=True)
    known = isinstance(form, str) and (form in FORMATS or (pattern is not None and form in _DEFINED_BY_PATTERN))
    if not isinstance(form, str) or not known:
        raise RequestError(
            f"{where}: the format {json_text(form)} is not one of {', '.join(FORMATS)}; remove it (in "
            "pydantic, declare a str), or replace it by a pattern"
        )
    if pattern is None or _IMPLIED_PATTERNS.get(form) == pattern:
        return parse_regex(FORMATS[form], where)
    language = parse_regex(pattern, f"{where}.pattern", search=True)
    if form in _DEFINED_BY_PATTERN:
        return language
    return Intersection((language, parse_regex(_BESIDE_PATTERN.get(form, FORMATS[form]), where)))
