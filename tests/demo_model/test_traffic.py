"""The router's demo traffic: its shares, its two parts, and the file that `nearfar router log` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo_model.corpus import HARD
from demo_model.traffic import demo_prompts, main
from nearfar.compiler.errors import RequestError
from nearfar.server_fallback.router.fitting.prompts import Prompt


def test_a_third_is_hard_and_the_parts_share_no_prompt() -> None:
    fit, held_out = demo_prompts("fit", 600), demo_prompts("eval", 300)
    assert fit == demo_prompts("fit", 600)
    assert fit != demo_prompts("fit", 600, seed=1)
    texts = {prompt.prompt for prompt in fit}
    assert len(texts) == 600
    assert texts.isdisjoint(prompt.prompt for prompt in held_out)
    hard = sum(prompt.task in HARD for prompt in (*fit, *held_out)) / 900
    # Within three standard deviations.
    assert hard == pytest.approx(1 / 3, abs=0.05)


def test_the_file_reads_back_as_the_same_prompts_with_their_right_answers(tmp_path: Path) -> None:
    file = tmp_path / "new" / "prompts.jsonl"
    main(["eval", "--count", "100", "--seed", "3", "-o", str(file)])
    read = Prompt.read(file)
    assert read == demo_prompts("eval", 100, seed=3)
    assert all((prompt.expected is None) != (prompt.accepted is None) for prompt in read)


def test_more_prompts_than_the_tasks_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demo_model.traffic.DRAWS", 1)
    with pytest.raises(RequestError, match="request fewer than 50"):
        demo_prompts("fit", 50)
