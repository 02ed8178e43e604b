"""Training: a resumed run equals an uninterrupted one, and a failing run stops with a reason."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demo_model.evaluate import answer_all
from demo_model.model import LlamaConfig
from demo_model.rows import NO_TARGET
from demo_model.saved_model import read_checkpoint
from demo_model.train import (
    PLANS,
    Training,
    TrainingPlan,
    answer_loss,
    begin,
    draw_losses,
    learning_rate_factor,
    main,
    resume,
    run,
    save,
)
from demo_model.two_runs import require_equal_weights
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError

TINY = TrainingPlan(
    steps=6,
    rows=2,
    row_tokens=128,
    warmup_steps=2,
    compiled=False,
    model=LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    ),
)


@pytest.fixture(scope="module")
def uninterrupted() -> Training:
    training = begin(TINY)
    run(training, TINY.steps)
    return training


def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(uninterrupted: Training, tmp_path: Path) -> None:
    interrupted = begin(TINY)
    run(interrupted, 3)
    save(interrupted, tmp_path / "resume.pt")
    continued = resume(TINY, tmp_path / "resume.pt")
    assert continued.step == 3
    run(continued, TINY.steps)
    assert continued.losses == uninterrupted.losses
    require_equal_weights(uninterrupted.model, continued.model)


def test_the_loss_falls_within_a_few_steps(uninterrupted: Training) -> None:
    assert uninterrupted.losses[0] == pytest.approx(math.log(1024), rel=0.05)
    assert uninterrupted.losses[-1] < uninterrupted.losses[0] - 0.1


def test_a_resumed_run_refuses_another_plan(uninterrupted: Training, tmp_path: Path) -> None:
    save(uninterrupted, tmp_path / "resume.pt")
    with pytest.raises(CheckpointError, match="belongs to another plan"):
        resume(replace(TINY, seed=2), tmp_path / "resume.pt")


def test_resuming_nothing_is_an_error_on_the_command_line(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit, match=r"checkpoint_error: .*nothing to resume"):
            main(["--resume", "--output", str(tmp_path)])
    finally:
        torch.set_num_threads(threads)


def test_a_loss_that_is_not_a_number_stops_the_run() -> None:
    training = begin(TINY)
    with torch.no_grad():
        training.model.model.norm.weight.fill_(math.nan)
    with pytest.raises(NearfarError, match="the loss of step 0 is nan"):
        run(training, 1)


def test_a_step_without_answers_stops_the_run(uninterrupted: Training) -> None:
    hidden = torch.zeros(1, 4, TINY.model.hidden_size)
    with pytest.raises(NearfarError, match="without a single answer token"):
        answer_loss(uninterrupted.model, hidden, torch.full((1, 4), NO_TARGET))


def test_the_learning_rate_warms_up_and_falls_to_zero_at_the_last_step() -> None:
    plan = TrainingPlan(steps=100, warmup_steps=10)
    factors = [learning_rate_factor(plan, step) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == 1
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert factors[100] == pytest.approx(0)


def test_a_constant_learning_rate_falls_in_a_line_over_the_last_part() -> None:
    plan = TrainingPlan(steps=100, warmup_steps=10, decay_share=0.25)
    factors = [learning_rate_factor(plan, step) for step in range(101)]
    assert factors[9:76] == [1] * 67
    assert factors[85] == pytest.approx(0.6)
    assert factors[100] == 0


def test_more_steps_change_nothing_before_a_constant_learning_rate_falls() -> None:
    short, long = (replace(TINY, steps=steps, decay_share=0.25, rounded_share=0.25) for steps in (8, 80))
    trainings = [begin(plan) for plan in (short, long)]
    for training in trainings:
        run(training, 3)
    assert trainings[0].losses == trainings[1].losses


def test_the_far_plan_begins_as_the_near_model_with_its_tokenizer() -> None:
    near, tokenizer = read_checkpoint(CHECKPOINT)
    training = begin(PLANS["far"])
    assert training.tokenizer.to_str() == tokenizer.to_str()
    prompts = ["27+58", "turn off the bedroom light", "reverse hello", "sort pear apple fig"]
    assert answer_all(training.model.eval(), tokenizer, prompts) == answer_all(near, tokenizer, prompts)


def test_the_loss_curve_is_a_png(tmp_path: Path) -> None:
    draw_losses([3.0, 2.0, 1.0], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
