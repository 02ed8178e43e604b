"""Prompts and pairs as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.server_fallback.router.fitting.pairs import read_pairs
from nearfar.server_fallback.router.fitting.prompts import Prompt

PAIR = (
    '{"prompt": "2+2", "near": {"answer": "5", "right": false, "seconds": 0.1}, '
    '"far": {"answer": "4", "right": RIGHT, "seconds": 1}}'
)


def test_an_expected_or_accepted_answer_is_right() -> None:
    assert Prompt(prompt="p", expected="4").is_right(" 4\n") is True
    assert Prompt(prompt="p", expected="4").is_right("44") is False
    assert Prompt(prompt="p", accepted="[0-9]+").is_right("44 ") is True
    assert Prompt(prompt="p", accepted="[0-9]").is_right("44") is False
    assert Prompt(prompt="p").is_right("4") is None


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"prompt": "a"}\n\n{"prompt": 1}', r"p\.jsonl:3: prompt: "),
        ("not JSON", r"p\.jsonl:1: the line: "),
        ('{"prompt": "a", "answer": "b"}', r"p\.jsonl:1: answer: Extra inputs"),
        ('{"prompt": "a", "accepted": "("}', r"p\.jsonl:1: accepted: .*not a regular expression"),
    ],
)
def test_a_bad_line_is_named(lines: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(lines)
    with pytest.raises(RequestError, match=message):
        Prompt.read(tmp_path / "p.jsonl")


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    prompts = ["a\u2028b\u2029c\x85d", "e"]
    lines = "\r\n".join(f'{{"prompt": "{prompt}"}}' for prompt in prompts)
    (tmp_path / "p.jsonl").write_text("\ufeff" + lines, encoding="utf-8", newline="")
    assert [line.prompt for line in Prompt.read(tmp_path / "p.jsonl")] == prompts


def test_pairs_must_be_judged(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(PAIR.replace("RIGHT", "true"))
    assert [(pair.near.right, pair.far.right, pair.near.signals) for pair in read_pairs(file)] == [(False, True, None)]
    file.write_text(PAIR.replace("RIGHT", "true") + "\n" + PAIR.replace("RIGHT", "null"))
    with pytest.raises(RequestError, match=r"pair 2: far\.right is null"):
        read_pairs(file)
    file.write_text("\n")
    with pytest.raises(RequestError, match="has no pair"):
        read_pairs(file)
    with pytest.raises(RequestError, match="cannot be read"):
        read_pairs(tmp_path / "none")
