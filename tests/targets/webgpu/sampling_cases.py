"""The cases of adjust_logits, sample and top_logprobs: ties, every filter at its narrowest and at wider values, rows
that contain NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from case_arrays import nothing, random
from kernel_harness import Case, Run
from sampling_rows import rows_of

from nearfar.compiler.ir.ops import OPS, Array
from nearfar.compiler.ir.sampling import BIAS, COUNTS, IN_PROMPT, MARK, MASK, MASKED, Settings
from nearfar.compiler.ir.watermark import Watermark
from nearfar.compiler.kernels.adjust_logits import adjust_logits
from nearfar.compiler.kernels.builder import Kernel
from nearfar.compiler.kernels.mark_logits import mark_logits
from nearfar.compiler.kernels.sample import sample
from nearfar.compiler.kernels.sample_chunks import STEP, sample_chunks
from nearfar.compiler.kernels.sample_merge import sample_merge
from nearfar.compiler.kernels.top_chunks import top_chunks
from nearfar.compiler.kernels.top_logprobs import top_logprobs
from nearfar.compiler.kernels.top_merge import top_merge

# Greedy; all tokens; the first and the last of them; each filter alone, at its narrowest and at wider values; all three
# filters.
SETTINGS = (
    Settings(),
    Settings(temperature=1.0),
    Settings(temperature=0.5, draw=0.0),
    Settings(temperature=2.0, draw=1 - 2.0**-24),
    Settings(temperature=2.0, draw=1.0),
    Settings(temperature=1.0, top_k=1),
    Settings(temperature=1.5, top_k=7),
    Settings(temperature=1.0, top_p=1e-20),
    Settings(temperature=1.0, top_p=0.0),
    Settings(temperature=1.0, top_p=0.4),
    Settings(temperature=1.0, min_p=1.0),
    Settings(temperature=3.0, min_p=0.3),
    Settings(),
    Settings(temperature=1.0, top_p=0.95),
    Settings(temperature=1.0, top_k=40),
    Settings(temperature=1.5, top_k=50, top_p=0.9, min_p=0.02),
)


def sampling_cases() -> Iterator[Case]:
    yield from conformance_cases()
    for columns in (1, 100, 256, 509):
        yield replace(sample_case(columns, SETTINGS), exhaustive=columns in (1, 100, 256))
        # SwiftShader takes long for kernels of this size.
        yield replace(top_logprobs_case(columns), on_dawn=columns in (1, 509))
    # Chunks that end after the last column, fewer columns than places, and more chunks than a workgroup has threads.
    for columns, width in ((13, 256), (2100, 512), (66_100, 256)):
        case = chunked_top_logprobs(top_logprobs_case(columns), columns, width)
        yield replace(case, on_dawn=columns == 2100)
    # Chunks that end after the last column, a chunk of one column, and more chunks than a workgroup has threads.
    for columns, width in ((509, 256), (1025, 1024), (66_000, 256)):
        # lavapipe takes seconds for all of them.
        settings = SETTINGS[::2] if columns < 66_000 else SETTINGS[-2:]
        case = chunked_case(sample_case(columns, settings), columns, width)
        yield replace(case, on_dawn=columns == 1025, exhaustive=columns == 509)
    yield adversarial_case(2048, 1024)
    # Blocks of more columns than a workgroup has threads.
    yield replace(sample_case(66_000, SETTINGS[-2:]), on_dawn=True)
    for columns in (37, 256, 515):
        yield replace(adjust_logits_case(columns), on_dawn=True)
        yield replace(mark_logits_case(columns), on_dawn=columns == 515)


def sample_run(inputs: dict[str, Array]) -> Run:
    """One run of `sample`, on the arrays that the op reads and writes."""
    after = {role: inputs[role].copy() for role in ("sampled", "counts", "logprobs")}
    y = OPS["sample"].run({**inputs, **after}, {})
    assert y is not None
    rows, dims = len(y), {"R": len(y), "A": len(inputs["adjusted"]), "N": len(after["sampled"])}
    return Run(
        dims, {**inputs, "logprobs": nothing((rows,), "float32"), "y": np.full(rows, -7, np.int32)}, {**after, "y": y}
    )


def adjust_run(inputs: dict[str, Array]) -> Run:
    y = OPS["adjust_logits"].run(inputs, {})
    assert y is not None
    return Run(
        {"R": len(inputs["logits"]), "A": len(y), "N": len(inputs["counts"])},
        {**inputs, "y": nothing(y.shape, "float32")},
        {"y": y},
    )


def conformance_cases() -> Iterator[Case]:
    """The vectors of all runtimes, padded to one vocabulary size with tokens of no weight, so that they use one
    kernel.
    """
    vectors = json.loads((Path(__file__).parents[2] / "conformance/sampling.json").read_text())["cases"]
    columns = max(len(case["logits"]) for case in vectors)

    def inputs_of(case: dict[str, Any]) -> dict[str, Array]:
        inputs = rows_of({**case, "logits": case["logits"] + [-2e4] * (columns - len(case["logits"]))})
        adjusted = OPS["adjust_logits"].run(inputs, {})
        assert adjusted is not None
        return {**inputs, "adjusted": adjusted}

    def sample_runs() -> list[Run]:
        runs = [sample_run(inputs_of(case)) for case in vectors]
        for case, run in zip(vectors, runs, strict=True):
            assert run.expected["y"].tolist() == case["tokens"], case["name"]
        return runs

    def adjust_runs() -> list[Run]:
        inputs = [inputs_of(case) for case in vectors]
        return [adjust_run(each) for each in inputs if len(each["adjusted"])]

    plain = Case("sample_conformance", lambda: sample("sample", columns), sample_runs, on_dawn=True)
    yield plain
    # The chunks of the cases above have the same filters and ties.
    yield replace(chunked_case(plain, columns, 256), exhaustive=True)
    yield Case("adjust_logits_conformance", lambda: adjust_logits("adjust_logits", columns), adjust_runs, on_dawn=True)


def sample_case(columns: int, each_settings: Sequence[Settings]) -> Case:
    """Every row but the first, which keeps no token, has its own slot, in random order. The last row contains NaN."""
    name = f"sample_{columns}"

    def run(kind: str) -> Run:
        rng = random(name + kind)
        rows = len(each_settings) + 2
        # With few distinct numbers, there are many ties.
        integers = rng.integers(-3, 3, (rows, columns)).astype(np.float32)
        logits = integers if kind == "ties" else (rng.normal(size=(rows, columns)) * 3).astype(np.float32)
        logits[-2] = -2e30
        logits[-1, columns // 2] = np.nan
        settings = [each._replace(draw=each.draw or rng.random()) for each in each_settings] + [
            Settings(temperature=1.0, draw=0.5)
        ] * 2
        slots = np.stack([rng.permutation(rows) - 1, rng.integers(0, 2, rows) * COUNTS], 1)
        slots[slots[:, 0] < 0, 1] = 0
        return sample_run(
            {
                "logits": logits,
                "adjusted": np.roll(logits, 1, axis=1) if kind == "adjusted" else np.zeros((0, columns), np.float32),
                "settings": np.array(settings, np.float32),
                "slots": slots.astype(np.int32),
                "sampled": np.full(rows, -5, np.int32),
                "counts": rng.integers(0, 5, (rows, columns)).astype(np.int32),
                "logprobs": np.zeros(rows, np.float32),
            }
        )

    return Case(name, lambda: sample("sample", columns), lambda: [run(kind) for kind in ("ties", "normal", "adjusted")])


def chunked_case(case: Case, columns: int, width: int) -> Case:
    """The same runs, by the kernels of many workgroups per row."""
    name = case.name.replace("sample", f"sample_chunks_of_{width}")
    return replace(
        case,
        name=name,
        build=lambda: [sample_chunks("chunks", columns, width), sample_merge("merge", columns, width)],
    )


def adversarial_case(columns: int, width: int) -> Case:
    """Rows on which a threshold search or a running sum may go wrong, each with every filter."""
    name = f"sample_adversarial_{columns}"

    def runs() -> Iterator[Run]:
        rng = random(name)
        falling = np.linspace(8, -8, columns)
        ties_at_7th = np.where(np.arange(columns) % (columns // 3) == 5, 2.0, rng.integers(-9, 2, columns))
        rows = {
            "all equal": np.full(columns, -7.5),
            "one huge": np.where(np.arange(columns) == columns - 1, 3e38, -3e38),
            "ties at the last one kept": np.where(np.arange(columns) < 5, 3.0, ties_at_7th),
            "zeros of both signs": np.where(rng.random(columns) < 0.5, 0.0, -0.0) - (np.arange(columns) % 3 == 0),
            "all masked but the last": np.where(np.arange(columns) == columns - 1, -1.0, -3.0e38),
            "the largest first": np.round(falling),
            "the largest last": np.round(falling[::-1]),
            "close together": rng.permutation(np.linspace(0, 0.5, columns)),
            "on steps of the ladder": rng.integers(-20, 40, columns) * np.float32(STEP * 1e-3),
            "no weight but for a few": np.where(np.arange(columns) % (columns // 4) == 1, 5.0, -1e5),
        }
        settings = [
            Settings(temperature=1.0),
            Settings(temperature=1.0, top_k=1),
            Settings(temperature=1.0, top_k=7),
            Settings(temperature=1.0, top_k=columns - 1),
            Settings(temperature=0.7, top_k=columns + 1),
            Settings(temperature=1.0, top_p=1e-6),
            Settings(temperature=1.0, top_p=0.5),
            Settings(temperature=1e-3, top_p=0.7),
            Settings(temperature=1.0, top_k=columns // 2, top_p=0.5, min_p=0.01),
            Settings(temperature=30.0, min_p=0.9),
        ]
        for row in rows.values():
            # In the middle of a token's range if all weigh the same.
            draws = (rng.integers(0, columns, len(settings)) + 0.5) / columns
            size = len(settings)
            yield sample_run(
                {
                    "logits": np.tile(row, (size, 1)).astype(np.float32),
                    "adjusted": np.zeros((0, columns), np.float32),
                    "settings": np.array(
                        [each._replace(draw=draw) for each, draw in zip(settings, draws, strict=True)], np.float32
                    ),
                    "slots": np.stack([np.arange(size), np.full(size, COUNTS)], 1).astype(np.int32),
                    "sampled": np.full(size, -5, np.int32),
                    "counts": np.zeros((size, columns), np.int32),
                    "logprobs": np.zeros(size, np.float32),
                }
            )

    build = lambda: [sample_chunks("chunks", columns, width), sample_merge("merge", columns, width)]  # noqa: E731
    return Case(name, build, lambda: list(runs()))


def adjust_logits_case(columns: int) -> Case:
    name = f"adjust_logits_{columns}"

    def run(flags: Sequence[int]) -> Run:
        rng = random(name + str(flags))
        rows = len(flags)
        words = -(-columns // 32)
        counts = rng.integers(0, 3, (rows, columns)) + rng.integers(0, 2, (rows, columns)) * IN_PROMPT
        settings = [
            Settings(repetition_penalty=1 + row / 4, frequency_penalty=row / 3, presence_penalty=1 - row / 2)
            for row in range(rows)
        ]
        return adjust_run(
            {
                "logits": rng.normal(size=(rows, columns)).astype(np.float32),
                "settings": np.array(settings, np.float32),
                "slots": np.stack([rng.permutation(rows), flags], 1).astype(np.int32),
                "counts": counts.astype(np.int32),
                "bias": rng.normal(size=(rows, columns)).astype(np.float32),
                "mask": rng.integers(-(2**31), 2**31, (rows, words)).astype(np.int32),
            }
        )

    batches = ((COUNTS,), (0, BIAS, COUNTS), (MASK,), (MASK | BIAS, 0, COUNTS | MASK, COUNTS | BIAS | MASK))
    return Case(name, lambda: adjust_logits("adjust_logits", columns), lambda: [run(flags) for flags in batches])


def mark_logits_case(columns: int) -> Case:
    """Rows of known tokens, and of tokens that only their slots have."""
    name = f"mark_logits_{columns}"

    def run(flags: Sequence[int]) -> Run:
        rng = random(name + str(flags))
        rows = len(flags)
        tokens = rows + 3
        inputs = {
            "adjusted": rng.normal(size=(rows, columns)).astype(np.float32),
            "token_ids": rng.integers(-rows, columns, tokens).astype(np.int32),
            "rows": rng.permutation(tokens)[:rows].astype(np.int32),
            "slots": np.stack([rng.permutation(rows) - 1, flags], 1).astype(np.int32),
            "sampled": rng.integers(0, columns, rows).astype(np.int32),
            "watermark": Watermark.of(name.encode(), 0.3, 2.5).row()[None],
        }
        inputs["adjusted"][:, 0] = MASKED
        y = OPS["mark_logits"].run(inputs, {})
        assert y is not None
        dims = {"S": tokens, "R": rows, "A": rows, "N": rows}
        return Run(dims, {**inputs, "y": nothing(y.shape, "float32")}, {"y": y})

    batches = ((MARK,), (0, MARK | MASK, BIAS), (MARK | COUNTS,) * 5)
    return Case(name, lambda: mark_logits("mark_logits", columns), lambda: [run(flags) for flags in batches])


def top_logprobs_case(columns: int) -> Case:
    name = f"top_logprobs_{columns}"

    def run(size: int) -> Run:
        rng = random(name)
        logits = (rng.normal(size=(size, columns)) * 2).astype(np.float32)
        logits[size // 2] = rng.integers(-3, 3, columns)
        width = min(20, columns)
        after = {"ids": np.zeros((size, width), np.int32), "logprobs": np.zeros((size, width), np.float32)}
        OPS["top_logprobs"].run({"logits": logits, **after}, {})
        before = {"ids": np.full((size, width), -1, np.int32), "logprobs": nothing((size, width), "float32")}
        return Run({"R": size, "W": size}, {"logits": logits, **before}, after)

    return Case(name, lambda: top_logprobs("top_logprobs", columns), lambda: [run(size) for size in (1, 3)])


def chunked_top_logprobs(case: Case, columns: int, width: int) -> Case:
    def build() -> list[Kernel]:
        return [top_chunks("top_chunks", columns, width), top_merge("top_merge", columns, width)]

    return replace(case, name=f"{case.name}_by_{width}", build=build)
