"""Random requests: both routers find the same texts in them, and reach the same verdicts.

They are drawn from fragments that were read differently before: escapes, halves of characters, numbers that doubles
round, empty fields that clients send back, and JSON that breaks off.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.decision.privacy import PrivateCheck
from nearfar.server_fallback.router.hybrid import read_request
from nearfar.server_fallback.router.hybrid_executor import situation_of
from nearfar.server_fallback.router.sides.texts import texts_of

WEB = Path(__file__).parents[3] / "web"
ESBUILD = WEB / "node_modules/esbuild/bin/esbuild"
FRAGMENTS = (
    "12", "3-", "123-45", "-6789", "a", "\\u0031", "\\", '"', "{", "\u00e9", "e\u0301", "\u200b", "\uff11", "\ud83d",
    "\U0001f600", "\n", " ", "\v", "private", "$", "\u00df", "\u03a3", '"n": 12', '{"k":"12"}', "", "\u2028", "\0",
    "\u0130", "\u212a", "\u017f",
)  # fmt: skip
NUMBERS = (
    0, -0.0, -1, 12, 1.5, 1e21, 1e22, -1e300, 1e-7, 2**53, 2**53 + 2, int(1e30), 0.1 + 0.2, 5e-324,
    123456789012345680000, 1e16, 2.5e-5, True, None,
)  # fmt: skip
# Of an argument's numbers, other ways to write a one.
ONES = ("1", "01", "1.50", "1e5", "-1E+9", "\u0661", "12345678901234567")
PATTERNS = (
    "^12$", r"\b12\b", "[0-9]{3}-[0-9]{2}-[0-9]{4}", "^[0-9]{16,22}$", "private", "^a", "a$", "^.$", r"\$", r"^\n?12",
    r"\Ba", "ss", "\u03c3", r"^1e\+22$", r"^-?[0-9.]+$", "^i", "^[^a]{4}$", "k",
)  # fmt: skip
UNUSED = ("parsed", "annotations", "audio", "thinking_blocks", "provider_specific_fields")


class Draw:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self, *choices: Any) -> Any:
        """One of these values; a function is called."""
        chosen = self._random.choice(choices)
        return chosen() if callable(chosen) else chosen

    def few(self, of: Callable[[], Any], least: int = 0) -> list[Any]:
        return [of() for _ in range(self._random.randrange(least, 4))]

    def some(self, share: float, **fields: Any) -> dict[str, Any]:
        return {key: self.one(value) for key, value in fields.items() if self._random.random() < share}

    def text(self) -> str:
        return "".join(self.few(lambda: self.one(*FRAGMENTS)))

    def value(self, depth: int = 3) -> Any:
        def inner() -> Any:
            return self.value(depth - 1)

        kinds = (lambda: self.few(inner), lambda: {self.text(): inner() for _ in self.few(inner)}) if depth else ()
        return self.one(self.text, lambda: self.one(*NUMBERS), *kinds)

    def arguments(self) -> str:
        written = json.dumps(self.value(), ensure_ascii=self.one(True, False))
        cut = written[: self._random.randrange(len(written) + 1)]
        return str(self.one(written, cut, written.replace("1", self.one(*ONES)), self.text))

    def part(self) -> dict[str, Any]:
        url = self.one("https://a/", "data:image/png;base64,", "data:a\nb;base64,") + self.one("AAA=", "12", self.text)
        return dict(
            self.one(
                lambda: {"type": "text", "text": self.text()},
                lambda: {"type": "refusal", "refusal": self.text()},
                lambda: {"type": "image_url", "image_url": {"url": url, **self.some(0.5, detail="low")}},
            )
        )

    def function(self) -> dict[str, Any]:
        return {"name": "f" + self.text(), "arguments": self.arguments(), **self.some(0.1, parsed_arguments=self.value)}

    def call(self) -> dict[str, Any]:
        return {"id": self.text(), "type": "function", "function": self.function(), **self.some(0.1, index=12)}

    def message(self) -> dict[str, Any]:
        calls = self.some(0.3, tool_calls=lambda: self.few(self.call)) or self.some(0.2, function_call=self.function)
        return {
            "role": self.one("system", "developer", "user", "assistant", "tool", "function"),
            "content": self.one(self.text, lambda: self.few(self.part), None),
            **self.some(0.2, name=self.text, tool_call_id=self.text, refusal=self.text),
            **self.some(0.2, reasoning_content=self.text, reasoning=self.text),
            **self.some(0.1, **{key: lambda: self.one(None, [], {}, "", {"a": ""}) for key in UNUSED}),
            **calls,
        }

    def tool(self) -> dict[str, Any]:
        about = self.some(0.3, description=self.text, parameters=lambda: {"a": self.value()}, strict=True)
        return {"type": "function", "function": {"name": self.text(), **about}}

    def shape(self) -> dict[str, Any]:
        schema = {"name": self.text(), "schema": self.one(None, {"a": self.value()})}
        return dict(
            self.one(
                {"type": "json_object"},
                {"type": "regex", "pattern": self.text()},
                {"type": "json_schema", "json_schema": schema},
            )
        )

    def chat(self) -> dict[str, Any]:
        return {
            "messages": self.few(self.message, least=1),
            **self.some(0.2, max_tokens=1212, seed=12, user=self.text, metadata=lambda: {"a": self.text()}, stop="12"),
            **self.some(0.2, tools=lambda: self.few(self.tool), response_format=self.shape),
            **self.some(0.2, chat_template_kwargs=lambda: {"a": self.value()}, prompt_cache_key=self.text),
        }


def verdict(request: dict[str, Any]) -> dict[str, Any] | None:
    """What this router reads; None if it refuses the request."""
    try:
        read = read_request({"model": "tiny", **request})
    except RequestError:
        return None
    messages, texts, media = texts_of(read)
    situation = situation_of(read, messages, texts, media)
    checks = {pattern: PrivateCheck.of((), (pattern,), ignore_case=True) for pattern in PATTERNS}
    return {
        "texts": list(texts),
        "parts": [list(message.parts or (message.content,)) for message in messages],
        "media": [[each.kind, each.message, each.part] for each in media],
        "tools": bool(read.tools) and read.tool_choice != "none",
        "private": [pattern for pattern, check in checks.items() if check.is_private(situation)],
    }


def compared(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"texts": sorted(set(found["texts"]), key=ascii)}


@pytest.mark.skipif(
    shutil.which("node") is None or not ESBUILD.exists(), reason="there is no node, or no web/node_modules"
)
@pytest.mark.parametrize("count", [150, pytest.param(2_500, marks=pytest.mark.exhaustive)])
def test_both_routers_read_random_requests_alike(count: int, tmp_path: Path) -> None:
    script = tmp_path / "print_verdicts.mjs"
    source = WEB / "test/router/print_verdicts.ts"
    bundle = (
        ESBUILD,
        source,
        "--bundle",
        "--format=esm",
        "--platform=node",
        f"--outfile={script}",
        "--log-level=error",
    )
    subprocess.run(bundle, check=True)
    draw = Draw(count)
    requests = [draw.chat() for _ in range(count)]
    read = [(request, found) for request in requests if (found := verdict(request)) is not None]
    assert len(read) > count * 0.6
    lines = "\n".join(json.dumps({"request": request, "patterns": PATTERNS}) for request, _ in read)
    printed = subprocess.run(["node", script], input=lines, capture_output=True, text=True, check=True).stdout
    for (request, ours), line in zip(read, printed.rstrip("\n").split("\n"), strict=True):
        assert compared(json.loads(line)) == compared(ours), json.dumps(request)
