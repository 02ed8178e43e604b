"""Step costs on the NVIDIA H200 from what `make gpu-check` measured there (`results/h200-cuda.json`): one sequence
alone, nano-vllm's workload of 256 sequences, whose steps follow from its lengths, and the kernels of larger batches.

    python tests/bench/h200_costs.py        # prints the costs of `nearfar.server_fallback.simulate.presets`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench_cuda import workload

from nearfar.server_fallback.simulate.costs import Shape, StepCosts
from nearfar.server_fallback.simulate.fitting import Measured, fit_costs

RESULTS = Path(__file__).parent / "results/h200-cuda.json"
KNOTS = (1.0, 64.0, 256.0, 4096.0)
# As in `gpu_check/sizes.py`: the prompts and answers of the workload, and the tokens of a step.
LENGTHS, STEP_TOKENS, PAGE = (100, 1024), 8192, 16
# The kernels' context, in `bench_cuda.py`. The launches of fewer rows take longer than their work.
CONTEXT, LEAST_ROWS = 256, 64


def figures() -> dict[str, Any]:
    """What was measured, by model."""
    parts = json.loads(RESULTS.read_text())["parts"]
    return {part["figures"]["model"]: part["figures"] for part in parts if "model" in part["figures"]}


def steps(count: int) -> Iterator[tuple[Shape, bool]]:
    """The steps of `bench_cuda.run_many`, and whether they compute prompts."""
    requests = workload(count, LENGTHS, PAGE)
    done = [0] * count
    waiting = list(range(count))
    while any(each < request.prompt + request.new - 1 for each, request in zip(done, requests, strict=True)):
        decoding = [
            slot for slot, each in enumerate(requests) if each.prompt <= done[slot] < each.prompt + each.new - 1
        ]
        reads = sum(done[slot] + 1 for slot in decoding)
        room, positions, rows, pairs = STEP_TOKENS - len(decoding), len(decoding), len(decoding), 0
        for slot in decoding:
            done[slot] += 1
        prompts = bool(waiting)
        while waiting and room > 0:
            slot = waiting[0]
            start, size = done[slot], min(room, requests[slot].prompt - done[slot])
            positions, room, pairs = positions + size, room - size, pairs + size * start + size * (size + 1) // 2
            done[slot] += size
            if done[slot] == requests[slot].prompt:
                rows += 1
                waiting.pop(0)
        yield Shape(positions, rows, reads, pairs), prompts


def measured(found: Mapping[str, Any]) -> list[Measured]:
    alone, many = found["alone"], found["many"]
    all_steps = list(steps(many["sequences"]))
    first = many["first_tokens_seconds"]
    made = [
        Measured((Shape(1, 1, alone["context"], 0),), alone["milliseconds_per_token"] / 1000),
        Measured(tuple(shape for shape, prompts in all_steps if prompts), first),
        Measured(tuple(shape for shape, prompts in all_steps if not prompts), many["seconds"] - first),
    ]
    for batch in found["steps"]:
        sequences, new = batch["sequences"], batch["new_tokens"]
        if sequences * new >= LEAST_ROWS:
            # The most likely tokens beside the chosen one are only computed for those who ask.
            seconds = batch["milliseconds"] / 1000 * (1 - batch["shares"]["top_logprobs"])
            start = CONTEXT - new
            pairs = 0 if new == 1 else sequences * (new * start + new * (new + 1) // 2)
            reads = sequences * CONTEXT if new == 1 else 0
            made.append(Measured((Shape(sequences * new, sequences, reads, pairs),), seconds))
    return made


def fitted() -> dict[str, StepCosts]:
    return {model: fit_costs(measured(found), KNOTS) for model, found in figures().items()}


def main() -> None:
    for model, found in figures().items():
        costs = fit_costs(measured(found), KNOTS)
        print(model, costs)
        for each in measured(found):
            said = sum(map(costs.seconds, each.shapes))
            print(f"  {len(each.shapes)} steps: measured {each.seconds:.5f} s, fitted {said / each.seconds - 1:+.1%}")


if __name__ == "__main__":
    main()
