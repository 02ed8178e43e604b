"""Train a demo model: ``python -m demo_model.train [--model near|far] [--steps N] [--seed N] [--output FOLDER]
[--resume]``.

Seed and step decide the data and the learning rate, never the clock, so a run that was interrupted and resumed ends
where an uninterrupted one does. Into the output folder go ``resume.pt`` (everything that a continued run needs),
``nearfar-demo/`` (the model as a Hugging Face folder, with its accuracy table) and ``loss.png``.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from nearfar.compiler.demo import CHECKPOINT, FAR_NAME, NAME
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError

from .corpus import CORPORA
from .evaluate import measure, quantize_in_place, show_table, write_accuracy
from .growth import grow
from .model import Llama, LlamaConfig
from .rows import NO_TARGET, training_rows
from .saved_model import read_checkpoint, write_checkpoint
from .tokenizer import train_tokenizer

REPOSITORY = Path(__file__).parents[2]
SAVE_EVERY_STEPS = 250
ROUNDED_TO = "q4f16"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Everything that determines the result, except the code and the machine's arithmetic."""

    steps: int = 5000
    seed: int = 1
    # A key of corpus.CORPORA.
    corpus: str = "near"
    # Whether training begins with the near model of the repository and its tokenizer instead of random weights.
    grown: bool = False
    rows: int = 20
    row_tokens: int = 192
    warmup_steps: int = 60
    muon_learning_rate: float = 0.02
    adam_learning_rate: float = 5e-3
    # The learning rate is constant and then falls linearly over this share of the steps. None: half a cosine after the
    # warm-up.
    decay_share: float | None = None
    # In the last part the loss is that of the 4-bit weights, so that the model settles where rounding costs little.
    rounded_share: float = 0.25
    compiled: bool = True
    # The dtype in which weights are stored.
    dtype: Literal["float32", "float16"] = "float32"
    model: LlamaConfig = field(default_factory=LlamaConfig)


PLANS = MappingProxyType(
    {
        "near": TrainingPlan(),
        "far": TrainingPlan(
            steps=4500,
            corpus="far",
            grown=True,
            rows=12,
            row_tokens=256,
            muon_learning_rate=0.01,
            adam_learning_rate=2e-3,
            decay_share=0.8,
            dtype="float16",
            model=LlamaConfig(
                hidden_size=192,
                num_hidden_layers=6,
                num_attention_heads=6,
                num_key_value_heads=3,
                intermediate_size=512,
            ),
        ),
    }
)
FOLDERS = MappingProxyType({"near": NAME, "far": FAR_NAME})


@dataclass(slots=True)
class Training:
    """The mutable state of a run, which ``resume.pt`` holds."""

    plan: TrainingPlan
    tokenizer: Tokenizer
    model: Llama
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
    losses: list[float]
    seconds: float = 0.0

    @property
    def step(self) -> int:
        return len(self.losses)


def begin(plan: TrainingPlan) -> Training:
    """A run at step 0, with random weights and a new tokenizer, or with those of the near model."""
    torch.manual_seed(plan.seed)
    if plan.grown:
        near, tokenizer = read_checkpoint(CHECKPOINT)
        model = grow(near, plan.model)
    else:
        model = Llama(plan.model)
        tokenizer = train_tokenizer(plan.seed)
    return Training(plan, tokenizer, model, _optimizers(plan, model), [])


def run(training: Training, until: int, after_step: Callable[[Training], None] = lambda _: None) -> None:
    """Train to step ``until``. Raises NearfarError when the loss is empty or not a number."""
    plan, model = training.plan, training.model.train()
    hidden_states = torch.compile(model.model) if plan.compiled else model.model
    while training.step < until:
        began = time.perf_counter()
        context_length, corpus = plan.model.max_position_embeddings, CORPORA[plan.corpus]
        rows = training_rows(
            training.tokenizer, plan.seed, training.step, plan.rows, plan.row_tokens, context_length, corpus
        )
        with rounded(model) if training.step >= plan.steps * (1 - plan.rounded_share) else nullcontext():
            hidden = hidden_states(torch.from_numpy(rows.tokens), torch.from_numpy(rows.positions))
            loss = answer_loss(model, hidden, torch.from_numpy(rows.targets))
            _require_number(loss, training.step)
            loss.backward()
        factor = learning_rate_factor(plan, training.step)
        for optimizer in training.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_learning_rate"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        training.losses.append(loss.item())
        training.seconds += time.perf_counter() - began
        after_step(training)
    model.eval()


@contextmanager
def rounded(model: Llama) -> Iterator[None]:
    """Round the model's matrices as 4-bit packing does inside the context, and restore them afterwards with the
    gradients of the rounded ones (the straight-through estimator of Bengio et al. 2013).
    """
    exact = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    quantize_in_place(model, ROUNDED_TO)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(exact[name])


def answer_loss(model: Llama, hidden: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over the answers' tokens. hidden (rows, tokens, hidden), targets (rows, tokens) -> (). The
    head runs only on these tokens, which are fewer than half.
    """
    counted = targets != NO_TARGET
    if not counted.any():
        raise NearfarError("a step without a single answer token has no loss; rows are too short for the examples")
    return functional.cross_entropy(model.logits(hidden[counted]), targets[counted])


def learning_rate_factor(plan: TrainingPlan, step: int) -> float:
    """Linear warm-up, then half a cosine or a constant and a line, down to zero at the last step."""
    if step < plan.warmup_steps:
        return (step + 1) / plan.warmup_steps
    if plan.decay_share is not None:
        return min(1.0, (plan.steps - step) / (plan.steps * plan.decay_share))
    return 0.5 * (1 + math.cos(math.pi * (step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)))


def save(training: Training, path: Path) -> None:
    """Write ``resume.pt`` completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    state = {
        "plan": asdict(training.plan),
        "tokenizer": training.tokenizer.to_str(),
        "model": training.model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in training.optimizers],
        "losses": training.losses,
        "seconds": training.seconds,
    }
    torch.save(state, partial)
    os.replace(partial, path)


def resume(plan: TrainingPlan, path: Path) -> Training:
    """Continue from ``resume.pt``. Raises CheckpointError when it is missing or belongs to another plan."""
    if not path.is_file():
        raise CheckpointError(f"{path} is missing, so there is nothing to resume; start without --resume")
    state = torch.load(path, weights_only=True)
    if state["plan"] != asdict(plan):
        raise CheckpointError(
            f"{path} belongs to another plan; resume with the same --steps and --seed, or leave out --resume"
        )
    model = Llama(plan.model)
    model.load_state_dict(state["model"])
    optimizers = _optimizers(plan, model)
    for optimizer, stored in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(stored)
    return Training(plan, Tokenizer.from_str(state["tokenizer"]), model, optimizers, state["losses"], state["seconds"])


def draw_losses(losses: list[float], path: Path) -> None:
    """The loss of every step, and its mean over 50 steps, on a logarithmic axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    window = min(50, len(losses))
    means = [sum(losses[end - window : end]) / window for end in range(window, len(losses) + 1)]
    axes.semilogy(range(1, len(losses) + 1), losses, linewidth=0.4, alpha=0.5, label="each step")
    axes.semilogy(range(window, len(losses) + 1), means, label=f"mean of {window} steps")
    axes.set_xlabel("step")
    axes.set_ylabel("cross entropy per answer token (nats)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m demo_model.train", description="Train the demo model on text of its own."
    )
    parser.add_argument("--model", choices=PLANS, default="near")
    parser.add_argument("--steps", type=int, help="default: those of the plan")
    parser.add_argument("--seed", type=int, default=TrainingPlan().seed)
    parser.add_argument("--output", type=Path, help="default: build/demo, or build/demo-far")
    parser.add_argument("--threads", type=int, default=1, help="the same result needs the same number (default: 1)")
    parser.add_argument("--resume", action="store_true", help="continue from resume.pt in the output folder")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    plan = replace(PLANS[options.model], seed=options.seed)
    if options.steps is not None:
        plan = replace(plan, steps=options.steps)
    output = options.output or REPOSITORY / "build" / FOLDERS[options.model].removeprefix("nearfar-")
    console = Console()
    try:
        _train_and_measure(plan, output, options.resume, console)
    except NearfarError as error:
        sys.exit(f"{error.code}: {error}")


def _train_and_measure(plan: TrainingPlan, output: Path, resumed: bool, console: Console) -> None:
    training = resume(plan, output / "resume.pt") if resumed else begin(plan)
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    console.print(
        f"{parameters:,} parameters, {plan.steps} steps of {plan.rows} x {plan.row_tokens} tokens, seed {plan.seed}"
    )
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=plan.steps, completed=training.step, loss="compiling")

        def after_step(state: Training) -> None:
            recent = state.losses[-50:]
            mean = sum(recent) / len(recent)
            progress.update(bar, completed=state.step, loss=f"loss {mean:.4f}")
            if state.step % SAVE_EVERY_STEPS == 0:
                save(state, output / "resume.pt")
                progress.print(f"step {state.step}: loss {mean:.4f}, {state.seconds:.0f} s")

        run(training, plan.steps, after_step)
    save(training, output / "resume.pt")
    folder = output / FOLDERS[plan.corpus]
    write_checkpoint(folder, training.model, training.tokenizer, plan.dtype)
    draw_losses(training.losses, output / "loss.png")
    console.print(f"trained in {training.seconds:.0f} s; the model is in {folder}")
    # The weights are read back, because storing may have rounded them.
    table = measure(*read_checkpoint(folder), CORPORA[plan.corpus])
    write_accuracy(folder / "accuracy.json", table)
    show_table(table, console)


def _optimizers(plan: TrainingPlan, model: Llama) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the blocks' matrices (Jordan et al. 2024), AdamW for the embedding and the norms."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    others = [
        parameter for name, parameter in model.named_parameters() if parameter.ndim == 1 or "embed_tokens" in name
    ]
    muon = torch.optim.Muon(matrices, lr=plan.muon_learning_rate)
    adam = torch.optim.AdamW(others, lr=plan.adam_learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    for optimizer, rate in ((muon, plan.muon_learning_rate), (adam, plan.adam_learning_rate)):
        for group in optimizer.param_groups:
            group["base_learning_rate"] = rate
    return muon, adam


def _require_number(loss: Tensor, step: int) -> None:
    if not torch.isfinite(loss):
        raise NearfarError(
            f"the loss of step {step} is {loss.item()}; the training has diverged, so its weights are not saved"
        )


if __name__ == "__main__":
    main()
