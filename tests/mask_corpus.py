"""An adversarial corpus for masks: private texts in many forms, and harmless texts that look like them.

`measured` masks each request as the router does and reads what would leave. The policy is that of `web/masks.md`
with patterns alone.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.decision.situation import FarState, NearState, Situation
from nearfar.server_fallback.router.sides.finder import Classifies
from nearfar.server_fallback.router.sides.masker import Masker, Stays
from nearfar.server_fallback.router.sides.texts import texts_of, with_texts_of
from nearfar.server_fallback.schema.chat import ChatCompletionRequest

PATTERNS = {
    "EMAIL": r"\b[\w.%+-]+@(?:[a-z0-9-]+\.)+[a-z]{2,24}\b",
    "SSN": r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b",
    "CARD": r"\b(?:4[0-9]{3}|5[1-5][0-9]{2})(?:[ -]?[0-9]{4}){3}\b",
    "IBAN": r"\b[a-z]{2}[0-9]{2} ?(?:(?:[a-z]{4}|[a-z][0-9]{3}) ?)?(?:[0-9]{4} ?){2,6}[0-9a-z]{1,12}\b",
    "KEY": r"\b(?:sk-[\w-]{20}|gh[opsur]_\w{30}|AKIA[A-Z0-9]{16}\b)",
}
PATTERN_MASKS = {"patterns": [{"kind": kind, "pattern": pattern} for kind, pattern in PATTERNS.items()]}
POLICY = {"version": 1, "mode": "auto", "private": {"masks": PATTERN_MASKS}}
SECRETS = [
    "anna.lee@example.org", "bob+bills@mail.example.co.uk", "078-05-1120", "219-09-9999", "4242 4242 4242 4242",
    "5555555555554444", "DE89370400440532013000", "GB82 WEST 1234 5698 7654 32", "sk-Zm9vYmFyMTIzNDU2Nzg5MGFi",
    "AKIAIOSFODNN7EXAMPLE",
]  # fmt: skip
ALIKE = str.maketrans("aceopxyAEOPCHKMTBX", "асеорхуАЕОРСНКМТВХ")
WIDE = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")
SPELLED = str.maketrans({"@": " at ", ".": " dot ", "-": " dash ", "_": " underscore "})


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def called(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "save", "arguments": arguments}}
    return [*user("save it"), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "ok"}]


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


# In a row, of a private text as it is written.
LEAST = 6


@dataclass(frozen=True, slots=True)
class Case:
    """``written`` are the parts of the private text as the request has them. It leaks if `LEAST` of one leave."""

    form: str
    messages: list[dict[str, Any]]
    written: tuple[str, ...]


def within(form: str, write: Callable[[str], str], frame: str = "Mine is {}, so what now?") -> Iterator[Case]:
    """Each secret, written in this way, within a text."""
    for secret in SECRETS:
        written = write(secret)
        if written != secret or form in ("a sentence", "code", "JSON"):
            yield Case(form, user(frame.replace("{}", written)), (written,))


def cases() -> Iterator[Case]:
    yield from within("a sentence", str)
    yield from within("code", str, 'id = "{}"  # TODO\ncall(id)')
    yield from within("code", str, "curl -H x:y 'https://y.test/v1?id={}'")
    yield from within("JSON", str, '{"n":1,"list":[{"id":"{}"}]}')
    for secret in SECRETS:
        yield Case("a tool's call or result", called(json.dumps({"id": secret, "n": 1})), (secret,))
        yield Case("a tool's call or result", [*called("{}")[:-1], {"role": "tool", "content": secret}], (secret,))
        parts = [{"type": "text", "text": part} for part in ("Mine is", *halves(secret))]
        yield Case("split over parts", [{"role": "user", "content": parts}], halves(secret))
        first, second = halves(secret)
        yield Case("split over messages", [*user(first), *user(second)], (first, second))
    yield from within("invisible characters", "\u200b".join)
    yield from within("invisible characters", lambda secret: "\u00ad".join(halves(secret)))
    yield from within("full-width forms", lambda secret: secret.translate(WIDE))
    yield from within("letters of other scripts", lambda secret: secret.translate(ALIKE))
    yield from within("digits of another script", lambda secret: secret.translate(ARABIC))
    yield from within("base64", lambda secret: base64.b64encode(f"id: {secret}".encode()).decode())
    yield from within("other encodings", lambda secret: quote(secret, safe=""))
    yield from within("other encodings", lambda secret: "".join(f"&#{ord(each)};" for each in secret))
    yield from within("other encodings", lambda secret: "".join(f"\\u{ord(each):04x}" for each in secret))
    yield from within("spelled", lambda secret: " ".join(secret.replace(" ", "")))
    yield from within("spelled", lambda secret: secret.translate(SPELLED))


HARMLESS = [
    "On 2026-11-29 at 10:30 we meet; call 555-0100.",
    "npm install react@18.2.0 @types/node@20",
    "version 1.2.3-45-6789ab",
    "ISBN 978-3-16-148410-0",
    "The sum of 4242 and 4242 is 8484.",
    "See 192.168.0.1:8080 and ::1",
    "@app.route('/users')",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "order 12-345-678, lot 99-1234",
    "user@host in a shell prompt",
    "a@b",
    "sk-learn and sk-image are libraries",
    "gh_pages",
    "AKIA is a prefix",
    "DE and GB are codes; A1 2345 is a road",
    "0.4242424242424242",
    "1/3 = 0.3333 3333 3333",
    "3.14159 26535 89793",
    "x = [4242, 4242, 4242]",
    "The 1984-85 season, 2019-2020",
    "ratio 123:45:6789",
    "call(078, 5, 1120)",
    "v2.0.0@latest",
    "Write a poem about the sea.",
    "[PERSON_1] is a placeholder",
    "https://example.org/a/b?c=d%20e",
    "aGVsbG8gd29ybGQhIQ==",
    "550e8400-e29b-41d4-a716-446655440000",
    "0x4242424242424242",
    "1,234,567,890.12 EUR",
    "10^16 = 10000000000000000",
    "+49 30 123456",
    "room 101-02",
    "git@github.com: access denied",
    "E = mc^2",
    "Анна пошла домой в 12:30.",
    "電話は 03-1234 です",
    "ratio ١٢٣",
    "😀 fine",
    "const key = process.env.API_KEY;",
    "the at sign @ and the dot .",
    "a.b.c.d",
    "C:\\Users\\x",
]


@dataclass(frozen=True, slots=True)
class Measured:
    """Numbers of requests: masked, kept near, and those whose private text leaves."""

    masked: int
    near: int
    leaks: int

    @property
    def percent(self) -> int:
        """The share that does not leak (recall), rounded down."""
        return 100 * (self.masked + self.near) // (self.masked + self.near + self.leaks)


@lru_cache(maxsize=1)
def measured() -> tuple[Mapping[str, Measured], int]:
    """Each form's results, and the number of harmless texts that are masked or kept near."""
    return asyncio.run(results(cases(), HARMLESS, Policy.read(POLICY)))


async def results(
    given: Iterable[Case], harmless: Iterable[str], policy: Policy, finder: Classifies | None = None
) -> tuple[Mapping[str, Measured], int]:
    """As `measured`, of other cases and texts under another policy."""

    async def is_private(situation: Situation) -> bool:
        return policy.private_check.is_private(situation)

    async def matches(*parts: str) -> bool:
        return policy.private_check.matches(*parts)

    masker = Masker(policy, is_private, matches, finder)
    counts: dict[str, dict[str, int]] = {}
    for case in given:
        counts.setdefault(case.form, {"masked": 0, "near": 0, "leaks": 0})[
            await outcome(masker, case.messages, case.written)
        ] += 1
    alarms = [text for text in harmless if await outcome(masker, user(text), (text,)) != "leaks"]
    return {form: Measured(**each) for form, each in counts.items()}, len(alarms)


async def outcome(masker: Masker, messages: list[dict[str, Any]], written: tuple[str, ...]) -> str:
    """ "masked", "near" or "leaks"."""
    request = ChatCompletionRequest.model_validate({"model": "m", "messages": messages})
    found, texts, media = texts_of(request)
    situation = Situation(found, NearState(available=True), FarState(online=True), texts=texts, media=media)

    async def situated(masked: ChatCompletionRequest) -> Situation:
        return with_texts_of(situation, masked)

    chat = await masker.mask(request, situation, situated, Call("c"))
    if isinstance(chat, Stays):
        return "near"
    sent = [text for each in chat.request.messages for text in _texts(each.model_dump(exclude_none=True))]
    pieces = {part[at : at + LEAST] for part in written for at in range(max(len(part) - LEAST, 0) + 1)}
    return "leaks" if any(piece in text for text in sent for piece in pieces) else "masked"


def _texts(value: Any) -> Iterator[str]:
    """All texts of a message, also those in the arguments of its calls."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def figure(name: str) -> str:
    """A figure of the README: a form with "masked", "near", "leaks" or "percent", or "all" or "harmless" with one."""
    form, _, value = name.rpartition(" ")
    forms, alarms = measured()
    total = Measured(*(sum(getattr(each, key) for each in forms.values()) for key in ("masked", "near", "leaks")))
    kept = total.masked + total.near
    if form == "harmless":
        return str({"alarms": alarms, "texts": len(HARMLESS), "precision": 100 * kept // (kept + alarms)}[value])
    return str(getattr(total if form == "all" else forms[form], value))
