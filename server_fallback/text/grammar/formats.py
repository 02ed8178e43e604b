"""The formats of strings, as patterns: each makes only texts that the format's definition allows, though not all (no 29th of February)."""

from __future__ import annotations

_DATE = r"\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# Few counts: each is a state, for which the whole vocabulary is looked at once.
_WORD = "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,14}[A-Za-z0-9])?"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"

# RFC 3339, RFC 4122, RFC 5321, RFC 1123, RFC 2673, RFC 3986.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(\d{1,4}W|\d{1,4}D|\d{1,4}Y|\d{1,4}M|(\d{1,4}D)?T(\d{1,4}H|\d{1,4}M|\d{1,4}S))",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@({_WORD}\.)+[A-Za-z]{{2,6}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,2}}",
    "ipv4": rf"{_BYTE}\.{_BYTE}\.{_BYTE}\.{_BYTE}",
    "uri": rf"https?://{_WORD}(\.{_WORD})*(:[1-9]\d{{0,3}})?(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?",
}
