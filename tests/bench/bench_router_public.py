"""The router on public answers: ``python bench_router_public.py FOLDER [--inputs words MODEL ...] [--vectors FOLDER]``.

FOLDER holds RouteLLM's answers of Mixtral 8x7B (near) and GPT-4 (far) to MMLU and GSM8K: gsm8k_responses.csv and
mmlu/*.csv (Ong et al. 2024). Policies are fitted as ``nearfar router fit`` does, with words alone and with the vectors
of each encoder:

- to one half of MMLU's subjects, and evaluated on the other half; and to all of MMLU, and evaluated on GSM8K: prompts
  that are foreign to the fit;
- to 1,531 questions of all subjects, as many as RouteLLM's routers were fitted to (MMLU's validation questions, whose
  answers are not in FOLDER), to fewer and to more of them, and evaluated on all others; and to half of GSM8K.

The demo's policy, which was fitted to other models and other prompts, is evaluated as it is.

Intervals are 95 %, over prompts and over subjects. ``--vectors`` retains the vectors for the next run. ``--json``
replaces those figures in a file that this run measures, and is written after each part.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bench_compile import machine
from bench_router_fit import read_answers

from nearfar.server_fallback.cli.router import embed_prompts, open_model
from nearfar.server_fallback.router.decision.policy import Policy
from nearfar.server_fallback.router.fitting.evaluation import evaluate
from nearfar.server_fallback.router.fitting.fit import fit
from nearfar.server_fallback.router.fitting.pairs import Array, FarAnswer, NearAnswer, Pair, rights
from nearfar.server_fallback.router.fitting.scores import all_scores
from nearfar.server_fallback.router.sides.local_embedder import encoder_of

Indices = npt.NDArray[np.int64]

GSM8K = "gsm8k_responses"
# How many questions of all subjects a policy is fitted to, and how often they are drawn. RouteLLM's routers were fitted
# to 1,531.
KNOWN = {200: 1, 500: 1, 1531: 2, 5000: 1}
BASELINES = ("random", "length", "rule", "task", "oracle")
# What each policy is compared with.
COMPARED = ("length", "rule")
DEMO_POLICY = Path(__file__).parents[2] / "server_fallback/router/fitting/demo_policy.json"
# APGR, CPT(50 %) and CPT(80 %) of Ong et al. 2024 (arXiv 2406.18665v4), tables 2 and 3.
PUBLISHED = {
    "MMLU, foreign (arena alone)": {
        "BERT": (0.502, 0.4943, 0.7780),
        "causal LLM": (0.499, 0.4888, 0.7793),
        "matrix factorization": (0.524, 0.4500, 0.7686),
        "SW ranking": (0.473, 0.5582, 0.8025),
    },
    "MMLU, known (arena and MMLU's validation questions)": {
        "BERT": (0.572, 0.4130, 0.7220),
        "causal LLM": (0.600, 0.3549, 0.7031),
        "matrix factorization": (0.597, 0.3546, 0.7140),
        "SW ranking": (0.603, 0.3540, 0.7155),
    },
    "GSM8K, foreign (arena alone)": {
        "BERT": (0.438, 0.5878, 0.8384),
        "causal LLM": (0.461, 0.5609, 0.8356),
        "matrix factorization": (0.4746, 0.5359, 0.8524),
        "SW ranking": (0.4753, 0.5443, 0.8211),
    },
}


@dataclass(frozen=True, slots=True)
class Part:
    """The pairs that policies are fitted to, and those on which they are evaluated, by their numbers. ``apart``: each
    pair is a group of its own, because the subjects of both are the same.
    """

    name: str
    title: str
    fitted: Indices
    asked: Indices
    apart: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--inputs",
        nargs="+",
        default=["words", "demo-encoder"],
        help="words; words and vectors of demo-encoder or bundles",
    )
    parser.add_argument("--parts", nargs="+", help="the names of the parts to measure, such as even-odd; default: all")
    parser.add_argument("--vectors", type=Path, help="a folder for the encoders' vectors")
    parser.add_argument("--json", type=Path, help="the file for all figures")
    options = parser.parse_args()
    print(machine())
    pairs = [made_pair(*row) for row in read_answers(options.folder)]
    parts = {part.name: part for part in made_parts([pair.task or "" for pair in pairs])}
    inputs = {
        Path(name).name: pairs if name == "words" else with_vectors(pairs, name, options.vectors)
        for name in options.inputs
    }
    for name in options.parts or [*parts, "demo"]:
        if name == "demo":
            record(options.json, [*demo_figures(pairs, gsm8k=False), *demo_figures(pairs, gsm8k=True)])
            continue
        part = parts[name]
        print(f"\n{part.name}: {part.title}: {len(part.fitted):,} pairs, {len(part.asked):,} prompts")
        for key, read in inputs.items():
            record(options.json, compare(part, key, read))
    for title, published in PUBLISHED.items():
        print(f"\nRouteLLM, {title}")
        for name, figures in published.items():
            print(f"  {name:32} " + "  ".join(f"{figure:.3f}" for figure in figures))


def record(file: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    if file is None:
        return
    known = json.loads(file.read_text("utf-8"))["figures"] if file.exists() else {}
    for row in rows:
        known[f"{row['part']} {row['policy']}"] = row
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(known.items()))
    file.write_text(f'{{"machine": {json.dumps(machine())}, "figures": {{\n{lines}\n}}}}\n', "utf-8")


def made_pair(prompt: str, subject: str, near: bool, far: bool) -> Pair:
    return Pair(
        prompt=prompt,
        task=subject,
        group=subject,
        near=NearAnswer(answer="", right=near, seconds=0.0),
        far=FarAnswer(answer="", right=far, seconds=0.0),
    )


def with_vectors(pairs: Sequence[Pair], name: str, folder: Path | None) -> list[Pair]:
    """The pairs with the vectors of an encoder, which are read from a file of an earlier run if there is one."""
    file = None if folder is None else folder / f"{Path(name).name}.npy"
    if file is not None and file.exists():
        vectors = np.load(file)
        assert len(vectors) == len(pairs), f"{file} is of other prompts; remove it"
        return [
            pair.model_copy(update={"embedding": tuple(vector)})
            for pair, vector in zip(pairs, vectors.tolist(), strict=True)
        ]

    async def embed() -> list[Pair]:
        executor = await open_model(name, ())
        try:
            return await embed_prompts(pairs, encoder_of(name, executor, None))
        finally:
            await executor.close()

    started = time.perf_counter()
    found = asyncio.run(embed())
    print(f"{name}: {len(pairs):,} vectors in {time.perf_counter() - started:.0f} s")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, np.array([pair.embedding for pair in found], np.float32))
    return found


def made_parts(tasks: Sequence[str]) -> list[Part]:
    """``tasks`` are the subjects of all pairs."""
    subjects = sorted({*tasks} - {GSM8K})
    number = np.array([-1 if task == GSM8K else subjects.index(task) for task in tasks])
    mmlu, gsm8k = np.flatnonzero(number >= 0), np.flatnonzero(number < 0)
    even, odd = (mmlu[number[mmlu] % 2 == half] for half in (0, 1))
    parts = [
        Part("even-odd", "fitted to even subjects, on odd ones", even, odd),
        Part("odd-even", "fitted to odd subjects, on even ones", odd, even),
    ]
    for count, seeds in KNOWN.items():
        for seed in range(seeds):
            drawn = np.random.default_rng(seed).permutation(mmlu)
            title = f"fitted to {count:,} questions of all subjects, draw {seed}"
            parts.append(Part(f"known-{count}-{seed}", title, drawn[:count], drawn[count:], apart=True))
    drawn = np.random.default_rng(0).permutation(gsm8k)
    half = len(drawn) // 2
    parts.append(
        Part("gsm8k-half", "fitted to half of GSM8K, on the other half", drawn[:half], drawn[half:], apart=True)
    )
    parts.append(Part("mmlu-gsm8k", "fitted to MMLU, on GSM8K", mmlu, gsm8k))
    return parts


def compare(part: Part, name: str, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Print and return the figures of a policy that is fitted to these pairs; with words, also of the baselines."""
    fitted, asked = ([pairs[index] for index in chosen] for chosen in (part.fitted, part.asked))
    if part.apart:
        fitted = [pair.model_copy(update={"group": None}) for pair in fitted]
    started = time.process_time()
    result = fit(fitted, encoder=None if name == "words" else name)
    seconds = time.process_time() - started
    quality = {"predictor": result.predictor.model_dump(mode="json"), "threshold": result.threshold}
    scores = all_scores(asked, Policy.read({"version": 1, "mode": "auto", "quality": quality}))
    penalties = dict[str, float](result.penalties.blocks(), apart=result.penalties.apart)
    about = {
        "pairs": len(fitted),
        "seconds": round(seconds, 1),
        "kb": round(len(result.predictor.model_dump_json()) / 1000),
        "penalties": penalties,
    }
    names = {"auto": name, **({each: each for each in BASELINES} if name == "words" else {})}
    return figures(part.name, asked, scores, names, about)


def demo_figures(pairs: Sequence[Pair], *, gsm8k: bool) -> list[dict[str, Any]]:
    asked = [pair for pair in pairs if (pair.task == GSM8K) is gsm8k]
    name = f"demo-{'gsm8k' if gsm8k else 'mmlu'}"
    print(f"\n{name}: the demo's policy: {len(asked):,} prompts")
    scores = all_scores(asked, Policy.read(DEMO_POLICY))
    return figures(name, asked, scores, {"auto": "demo", "length": "length", "rule": "rule"}, {})


def figures(
    part: str, pairs: Sequence[Pair], scores: Mapping[str, Array], names: Mapping[str, str], about: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Of the scores that ``names`` has, by those names. The first is also compared with the length and the rule; it has
    the figures ``about``.
    """
    subjects = sorted({pair.task or "" for pair in pairs})
    groups = np.array([subjects.index(pair.task or "") for pair in pairs], np.int64)
    compared = {name: scores[name] for name in dict.fromkeys([*names, *COMPARED])}
    by_prompt = evaluate(*rights(pairs), compared, 0.0)
    by_subject = evaluate(*rights(pairs), compared, 0.0, groups=groups) if len(subjects) > 1 else None
    rows = []
    for score, name in names.items():
        found = by_prompt.policies[score]
        row: dict[str, Any] = {"part": part, "policy": name, "prompts": len(pairs)}
        for figure in ("apgr", "cpt50", "cpt80"):
            row[figure] = round(getattr(found, figure), 4)
            row[f"{figure}_95"] = rounded(getattr(found, f"{figure}_95"))
        if by_subject is not None:
            row["apgr_95_subjects"] = rounded(by_subject.policies[score].apgr_95)
        rows.append(row)
    for other in COMPARED:
        rows[0][f"ahead_of_{other}"] = round(by_prompt.policies[other].ahead, 4)
        rows[0][f"ahead_of_{other}_95"] = rounded(by_prompt.policies[other].ahead_95)
        if by_subject is not None:
            rows[0][f"ahead_of_{other}_95_subjects"] = rounded(by_subject.policies[other].ahead_95)
    rows[0] |= about
    for row in rows:
        print("  " + ", ".join(f"{key} {value}" for key, value in row.items() if key != "part"), flush=True)
    return rows


def rounded(ends: tuple[float, float]) -> list[float]:
    return [round(end, 4) for end in ends]


if __name__ == "__main__":
    main()
