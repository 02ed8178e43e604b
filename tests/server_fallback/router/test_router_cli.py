"""nearfar router log, fit and eval in sequence: a tiny near model, and a far side whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI, Received, Reply, in_a_thread, text_chunks

from nearfar.compiler.cli import main
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.server_fallback.executors import local_recipe
from nearfar.server_fallback.router.decision.policy import Policy

HARD, EASY = 24, 16


def far_answer(received: Received) -> Reply:
    assert received.body is not None
    return Reply(chunks=text_chunks("forty ", "two"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Far always answers 42, which is right for the prompts with "solve". Near's answer is always different, which is
    right for the others.
    """
    lines: list[dict[str, Any]] = [
        {"prompt": f"solve {index} now", "expected": "forty two", "task": "solve"} for index in range(HARD)
    ]
    lines += [{"prompt": f"say {index}", "accepted": "(?s)(?!forty).*", "task": "say"} for index in range(EASY)]
    file = tmp_path / "prompts.jsonl"
    # Folds go by index, so the kinds must not be in a regular order.
    file.write_text("\n".join(json.dumps(line) for line in sorted(lines, key=lambda line: json.dumps(line)[::-1])))
    return file


@pytest.fixture
def near(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(local_recipe, "open_runner", lambda _, bundle, limits: ReferenceRunner(bundle, limits=limits))
    return str(tiny_bundle)


def test_log_fit_and_eval_give_a_policy_that_improves_answers(
    near: str, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, policy, drawn = tmp_path / "pairs.jsonl", tmp_path / "policy.json", tmp_path / "eval.png"
    far = FakeOpenAI(far_answer)
    with in_a_thread(far) as url:
        arguments = (
            "--near",
            near,
            "--far",
            f"{url}/v1",
            "--prompts",
            str(prompts),
            "--max-tokens",
            "3",
            "-o",
            str(pairs),
        )
        assert main(["router", "log", *arguments]) == 0
    assert "40 pairs in" in capsys.readouterr().err
    logged = [json.loads(line) for line in pairs.read_text().splitlines()]
    assert [pair["prompt"] for pair in logged] == [
        json.loads(line)["prompt"] for line in prompts.read_text().splitlines()
    ]
    assert all(
        (pair["near"]["right"], pair["far"]["right"]) == (pair["task"] == "say", pair["task"] == "solve")
        for pair in logged
    )
    assert all(
        pair["near"]["signals"]["first_entropy"] > 0 > pair["near"]["signals"]["first_mean_logprob"] for pair in logged
    )
    assert all(pair["near"]["signals"]["prompt_mean_logprob"] < 0 for pair in logged)
    assert {each.body["temperature"] for each in far.received if each.body is not None} == {0.0}

    assert main(["router", "fit", str(pairs), "--min-quality", "0.95", "-o", str(policy)]) == 0
    assert "near is right" in capsys.readouterr().out
    read = Policy.read(policy)
    assert read.mode == "auto"
    assert read.quality.predictor is not None
    assert read.quality.predictor.fitted is not None
    assert read.quality.predictor.fitted.wanted is not None
    assert read.quality.predictor.fitted.wanted.quality == 0.95

    assert main(["router", "eval", str(pairs), "--policy", str(policy), "--plot", str(drawn)]) == 0
    assert "APGR" in capsys.readouterr().out
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert main(["router", "eval", str(pairs), "--policy", str(policy), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures["policies"]) == ["auto", "random", "length", "rule", "confidence", "task", "oracle"]
    assert (figures["near_quality"], figures["far_quality"], figures["prompts"]) == (EASY / 40, HARD / 40, 40)
    assert figures["policies"]["random"]["apgr"] == pytest.approx(0.5)
    assert figures["policies"]["auto"]["apgr"] == pytest.approx(figures["policies"]["oracle"]["apgr"], abs=0.05)
    assert figures["quality"] >= 0.95
    assert figures["refits"] == 0
    refitted = ["router", "eval", str(pairs), "--policy", str(policy), "--fitted-on", str(pairs), "--refits", "3"]
    assert main([*refitted, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refits"] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("log", "--near", "demo", "--far", "http://a", "--prompts", "EMPTY", "-o", "x"), "has no prompt"),
        (
            ("log", "--near", "demo", "--far", "http://a", "--prompts", "none.jsonl", "-o", "x"),
            "none.jsonl: cannot be read",
        ),
        (("fit", "EMPTY", "-o", "x"), "has no pair"),
        (("eval", "PAIRS", "--policy", "NO_PREDICTOR"), "decides nothing by quality"),
        (("eval", "PAIRS", "--policy", "none.json"), "none.json"),
        (("eval", "PAIRS", "--policy", "NO_PREDICTOR", "--refits", "9"), "--refits needs --fitted-on"),
    ],
)
def test_errors_explain_the_reason(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    side = {"answer": "", "right": True, "seconds": 0.0}
    files = {
        "EMPTY": "",
        "PAIRS": json.dumps({"prompt": "p", "near": side, "far": side}),
        "NO_PREDICTOR": '{"version": 1, "mode": "auto"}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main(["router", *(str(tmp_path / each) if each in files else each for each in arguments)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_pairs_of_an_earlier_run_remain_if_a_side_cannot_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, pairs, new = tmp_path / "prompts.jsonl", tmp_path / "pairs.jsonl", tmp_path / "new.jsonl"
    prompts.write_text('{"prompt": "2+2?", "expected": "4"}')
    pairs.write_text("an hour of answers\n")
    for output in (pairs, new):
        missing = str(tmp_path / "missing")
        assert (
            main(["router", "log", "--near", missing, "--far", missing, "--prompts", str(prompts), "-o", str(output)])
            == 2
        )
        assert "there is no such folder" in " ".join(capsys.readouterr().err.split())
    assert pairs.read_text() == "an hour of answers\n"
    assert not new.exists()
    assert (
        main(
            [
                "router",
                "log",
                "--near",
                "x",
                "--far",
                "x",
                "--prompts",
                str(prompts),
                "-o",
                str(tmp_path / "no" / "pairs.jsonl"),
            ]
        )
        == 2
    )
    assert "cannot be written" in capsys.readouterr().err
