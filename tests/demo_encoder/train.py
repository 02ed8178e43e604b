"""Train the demo encoder: ``python -m demo_encoder.train [--seed N] [--output FOLDER]``.

Contrastive: in a batch of pairs, each query must find its text among all texts, and each text its query (InfoNCE, van
den Oord et al. 2018).
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from .bert import Bert, BertConfig
from .pairs import draw_batch, read_sources
from .saved_encoder import write_checkpoint
from .start import begin
from .wordpiece import CLS, MASK, PAD, SEP, make_wordpiece

REPOSITORY = Path(__file__).parents[2]
ENCODER_NAME = "nearfar-demo-encoder"


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Everything that determines the result, except the text and the machine's arithmetic."""

    config: BertConfig = field(default_factory=BertConfig)
    seed: int = 1
    steps: int = 300
    pairs: int = 256
    query_tokens: int = 32
    text_tokens: int = 160
    # Of the table of tokens, and of everything else.
    table_learning_rate: float = 1e-3
    learning_rate: float = 5e-4
    warmup_steps: int = 20
    weight_decay: float = 0.01
    temperature: float = 0.15
    # The share of tokens that are replaced by [MASK] in training.
    masked_share: float = 0.1


def train(
    plan: TrainingPlan, console: Console, after: Callable[[Bert, Tokenizer], None] = lambda *_: None
) -> tuple[Bert, Tokenizer]:
    torch.manual_seed(plan.seed)
    generator = torch.Generator().manual_seed(plan.seed)
    rng = random.Random(plan.seed)
    sources = read_sources(rng)
    tokenizer = make_wordpiece(sources.texts(), plan.config.vocab_size)
    pieces = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    model = Bert(plan.config).train()
    began = time.perf_counter()
    begin(model, pieces, [_ids(tokenizer, text) for text in sources.written()], generator)
    console.print(f"{len(pieces)} tokens; start: {time.perf_counter() - began:.0f} s")
    after(model, tokenizer)
    encode = lru_cache(20_000)(lambda text: _ids(tokenizer, text))
    table = [model.words.weight]
    others = [parameter for name, parameter in model.named_parameters() if name != "words.weight"]
    optimizer = torch.optim.AdamW(
        [{"params": table, "peak": plan.table_learning_rate}, {"params": others, "peak": plan.learning_rate}],
        betas=(0.9, 0.98),
        weight_decay=plan.weight_decay,
    )
    recent: list[float] = []
    for step in track(range(plan.steps), "training", console=console, disable=not console.is_terminal):
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * learning_rate_factor(step, plan.steps, plan.warmup_steps)
        batch = draw_batch(sources, rng, plan.pairs)
        queries = [_query(encode(pair.query), pair.dropped, plan.query_tokens, rng) for pair in batch]
        texts = [encode(pair.text)[: plan.text_tokens - 2] for pair in batch]
        query_vectors, text_vectors = (
            model(_masked(padded(rows), plan.masked_share, generator)) for rows in (queries, texts)
        )
        loss = contrastive_loss(query_vectors, text_vectors, [pair.label for pair in batch], plan.temperature)
        if not torch.isfinite(loss):
            raise SystemExit(f"the loss of step {step} is {loss.item()}; the training has diverged")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append(loss.item())
        if (step + 1) % 100 == 0:
            mean = sum(recent[-100:]) / 100
            console.print(f"step {step + 1}: loss {mean:.3f}, {time.perf_counter() - began:.0f} s")
            after(model, tokenizer)
    return model.eval(), tokenizer


def contrastive_loss(queries: Tensor, texts: Tensor, labels: Sequence[str], temperature: float) -> Tensor:
    """The mean cross entropy of both directions. queries and texts (pairs, hidden), unit vectors -> (). Texts with a
    pair's label are not its negatives.
    """
    scores = queries @ texts.T / temperature
    numbers = {label: number for number, label in enumerate(labels)}
    label = torch.tensor([numbers[label] for label in labels])
    others = (label[:, None] == label) & ~torch.eye(len(labels), dtype=torch.bool)
    scores = scores.masked_fill(others, -1e9)
    wanted = torch.arange(len(labels))
    return (functional.cross_entropy(scores, wanted) + functional.cross_entropy(scores.T, wanted)) / 2


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Tokens without special ones -> ids with [CLS] and [SEP], (rows, longest + 2)."""
    longest = max(map(len, rows))
    return torch.tensor([[CLS, *row, SEP, *[PAD] * (longest - len(row))] for row in rows])


def _masked(tokens: Tensor, share: float, generator: torch.Generator) -> Tensor:
    chosen = torch.rand(tokens.shape, generator=generator) < share
    return torch.where(chosen & (tokens > MASK), MASK, tokens)


def _query(tokens: tuple[int, ...], dropped: float, most: int, rng: random.Random) -> list[int]:
    """A part of the tokens, without the share that is dropped."""
    size = round(most / (1 - dropped))
    start = rng.randrange(max(1, len(tokens) - size + 1))
    part = tokens[start : start + size]
    return [token for token in part if rng.random() >= dropped][:most] or list(part[:1])


def _ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def learning_rate_factor(step: int, steps: int, warmup_steps: int) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step - warmup_steps) / max(1, steps - warmup_steps)))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m demo_encoder.train", description="Train the demo encoder.")
    parser.add_argument("--seed", type=int, default=TrainingPlan().seed)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "build" / "demo-encoder")
    parser.add_argument("--threads", type=int, default=1, help="the same result needs the same number (default: 1)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    console = Console()
    model, tokenizer = train(TrainingPlan(seed=options.seed), console)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    write_checkpoint(options.output / ENCODER_NAME, model, tokenizer)
    console.print(f"{parameters:,} parameters, in {options.output}")


if __name__ == "__main__":
    main()
