"""The router on public answers: ``python bench_router_public.py FOLDER [--encoder MODEL ...] [--vectors FOLDER]``.

FOLDER holds RouteLLM's answers of Mixtral 8x7B (near) and GPT-4 (far) to MMLU and GSM8K: gsm8k_responses.csv and
mmlu/*.csv (Ong et al. 2024). Policies are fitted as ``nearfar router fit`` does, with words alone and with the vectors
of each encoder:

- to one half of MMLU's subjects, and evaluated on the other half and on GSM8K: prompts that are foreign to the fit;
- to 1,531 questions of all subjects, as many as RouteLLM's routers were fitted to (MMLU's validation questions, whose
  answers are not in FOLDER), and evaluated on all others.

Intervals are 95 %, over prompts and over subjects. ``--vectors`` retains the vectors for the next run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
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

FITTED_LIKE_ROUTELLM = 1531
GSM8K = "gsm8k_responses"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", nargs="*", default=["demo-encoder"], help="demo-encoder, or bundles")
    parser.add_argument("--vectors", type=Path, help="a folder for the encoders' vectors")
    parser.add_argument("--draws", type=int, default=5, help="of 1,531 questions; intervals are those of the first")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    print(machine())
    pairs = [made_pair(*row) for row in read_answers(options.folder)]
    inputs: dict[str, list[Pair]] = {"words": pairs}
    for encoder in options.encoder:
        inputs[f"words, {Path(encoder).name}"] = with_vectors(pairs, encoder, options.vectors)
    results = [*known_subjects(inputs, options.draws), *halves(inputs)]
    for title, published in PUBLISHED.items():
        print(f"\nRouteLLM, {title}")
        for name, figures in published.items():
            print(f"  {name:32} " + "  ".join(f"{figure:.3f}" for figure in figures))
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")


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


def halves(inputs: Mapping[str, list[Pair]]) -> list[dict[str, Any]]:
    pairs = inputs["words"]
    subjects = sorted({pair.task or "" for pair in pairs} - {GSM8K})
    number = np.array([-1 if pair.task == GSM8K else subjects.index(pair.task or "") for pair in pairs])
    even, odd, gsm8k = (np.flatnonzero(number >= 0) for _ in range(3))
    even, odd = even[number[even] % 2 == 0], odd[number[odd] % 2 == 1]
    gsm8k = np.flatnonzero(number < 0)
    results = []
    for title, fitted, asked in (
        ("fitted to even subjects, on odd ones", even, odd),
        ("fitted to odd subjects, on even ones", odd, even),
        ("fitted to even subjects, on GSM8K", even, gsm8k),
    ):
        results += compare(title, inputs, fitted, asked)
    return results


def known_subjects(inputs: Mapping[str, list[Pair]], draws: int) -> list[dict[str, Any]]:
    pairs = inputs["words"]
    mmlu = np.flatnonzero([pair.task != GSM8K for pair in pairs])
    results = []
    for draw in range(draws):
        drawn = np.random.default_rng(draw).permutation(mmlu)
        fitted, asked = drawn[:FITTED_LIKE_ROUTELLM], drawn[FITTED_LIKE_ROUTELLM:]
        # Each pair is its own group, because the subjects are those of the evaluation.
        alone = {name: [pair.model_copy(update={"group": None}) for pair in read] for name, read in inputs.items()}
        title = f"fitted to 1,531 questions of all subjects, draw {draw}"
        results += compare(title, alone, fitted, asked, baselines=draw == 0)
    for name in inputs:
        apgr = [found["apgr"] for found in results if found["policy"] == name]
        ahead = [found["ahead_of_length"] for found in results if found["policy"] == name]
        print(f"{name:32} of {draws} draws: APGR {np.mean(apgr):.3f} ({min(apgr):.3f} - {max(apgr):.3f}), ahead of "
              f"length by {np.mean(ahead):.3f} ({min(ahead):.3f} - {max(ahead):.3f})")  # fmt: skip
    return results


def compare(
    title: str, inputs: Mapping[str, list[Pair]], fitted: Indices, asked: Indices, *, baselines: bool = True
) -> list[dict[str, Any]]:
    """Print and return the figures of each fitted policy, and of the baselines."""
    print(f"\n{title}: {len(fitted):,} pairs, {len(asked):,} prompts")
    print(
        f"  {'policy':32} APGR   over prompts    over subjects   CPT(50)  CPT(80)  ahead of length: prompts, subjects"
    )
    results: list[dict[str, Any]] = []
    for name, pairs in inputs.items():
        started = time.process_time()
        encoder = None if pairs[0].embedding is None else name
        result = fit([pairs[index] for index in fitted], encoder=encoder)
        seconds = time.process_time() - started
        quality = {"predictor": result.predictor.model_dump(mode="json"), "threshold": result.threshold}
        policy = Policy.read({"version": 1, "mode": "auto", "quality": quality})
        scores = all_scores([pairs[index] for index in asked], policy)
        scores = {name: scores["auto"], **{key: scores[key] for key in ("length", "random", "rule", "task", "oracle")}}
        size = len(result.predictor.model_dump_json())
        read = ", ".join(f"{block} {penalty:g}" for block, penalty in result.penalties.blocks())
        note = f"{seconds:.0f} s of processor time, {size / 1000:.0f} kB, {read}, apart {result.penalties.apart:g}"
        results += figures(title, [pairs[index] for index in asked], scores, note, first=baselines and not results)
    return results


def figures(
    title: str, pairs: Sequence[Pair], scores: Mapping[str, Array], note: str, *, first: bool
) -> list[dict[str, Any]]:
    """Of the first policy and, the ``first`` time, of the baselines."""
    subjects = sorted({pair.task or "" for pair in pairs})
    groups = np.array([subjects.index(pair.task or "") for pair in pairs], np.int64)
    results = []
    for name in scores if first else list(scores)[:1]:
        ordered = {name: scores[name], "length": scores["length"]}
        by_prompt = evaluate(*rights(pairs), ordered, 0.0)
        by_subject = evaluate(*rights(pairs), ordered, 0.0, groups=groups) if len(subjects) > 1 else by_prompt
        found, of_subjects = by_prompt.policies[name], by_subject.policies[name]
        length = [each.policies["length"] for each in (by_prompt, by_subject)]
        print(
            f"  {name:32} {found.apgr:.3f}  {between(found.apgr_95)}  {between(of_subjects.apgr_95)}  "
            f"{found.cpt50:6.1%}   {found.cpt80:6.1%}   {length[0].ahead:+.3f} {between(length[0].ahead_95)} "
            f"{between(length[1].ahead_95)}" + (f"  {note}" if name == next(iter(scores)) else "")
        )
        results.append(
            {
                "of": title,
                "policy": name,
                "apgr": round(found.apgr, 4),
                "apgr_95": rounded(found.apgr_95),
                "apgr_95_subjects": rounded(of_subjects.apgr_95),
                "cpt50": round(found.cpt50, 4),
                "cpt80": round(found.cpt80, 4),
                "ahead_of_length": round(length[0].ahead, 4),
                "ahead_of_length_95": rounded(length[0].ahead_95),
                "ahead_of_length_95_subjects": rounded(length[1].ahead_95),
                **({"fit": note} if name == next(iter(scores)) else {}),
            }
        )
    return results


def between(ends: tuple[float, float]) -> str:
    return f"({ends[0]:.3f} - {ends[1]:.3f})"


def rounded(ends: tuple[float, float]) -> list[float]:
    return [round(end, 4) for end in ends]


if __name__ == "__main__":
    main()
