"""nearfar router log | fit | eval: log the answers of both sides, fit a policy to them, and evaluate the policy."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from rich.box import HORIZONTALS
from rich.table import Table

from nearfar.compiler.cli.output import new_console, print_json
from nearfar.compiler.cli.phases import progress_bars
from nearfar.compiler.runtime.errors import OutputError, RequestError, ToolError, reason_of

from ..executors.executor import Executor
from ..executors.local_opener import LocalOpener
from ..executors.local_options import LocalOptions
from ..router.decision.policy import Policy
from ..router.decision.predictor import Components, Predictor, Wanted
from ..router.fitting.prompts import Prompt
from .announcement import Announcement
from .options import Encoding, RouterEval, RouterFit, RouterLog
from .served_models import key_of

# What fits policies needs SciPy, which nearfar[serve] does not install.
if TYPE_CHECKING:
    from ..router.fitting.evaluation import Evaluation, Interval
    from ..router.fitting.fit import FitResult
    from ..router.fitting.pairs import Array, Pair
    from ..router.fitting.reliability import SideReport

from ..executors.encoder_executor import EncoderExecutor
from ..executors.executor import Call
from ..router.fitting.pairs import Pair

# About a minute for 2,000 pairs.
REFITS = 40


# --- log ---


def run_log(options: RouterLog) -> None:
    """Raises the errors of the sides; pairs that are already logged remain in the file."""
    asyncio.run(log_pairs(options, read_prompts(options), os.environ))


def read_prompts(options: RouterLog) -> Sequence[Prompt]:
    prompts = Prompt.read(options.prompts)[: options.count]
    if not prompts:
        raise RequestError(
            f"--prompts {options.prompts}: the file has no prompt; write lines such as "
            f'{{"prompt": "2+2?", "expected": "4"}}'
        )
    return prompts


async def log_pairs(options: RouterLog, prompts: Sequence[Prompt], environment: Mapping[str, str]) -> None:
    from ..router.fitting.query_both import query_both

    right = {"near": 0, "far": 0}
    async with AsyncExitStack() as opened:
        # Check before any slow work, but keep the pairs of an earlier run until both sides are open.
        require_writable(options.output)
        near = await open_model(options.near, options.trust)
        opened.push_async_callback(near.close)
        far, far_model = await open_far(options, environment)
        opened.push_async_callback(far.close)
        output = opened.enter_context(open_output(options.output))
        bars = opened.enter_context(progress_bars())
        bars.start()
        task = bars.add_task("prompts", total=len(prompts))
        logged = query_both(
            prompts, near, far, far_model=far_model, max_tokens=options.max_tokens, concurrency=options.concurrency
        )
        async with aclosing(logged) as pairs:
            async for pair in pairs:
                output.write(pair.model_dump_json(exclude={"embedding"}) + "\n")
                right["near"] += bool(pair.near.right)
                right["far"] += bool(pair.far.right)
                bars.advance(task)
    shares = ", ".join(f"{side} right on {number / len(prompts):.1%}" for side, number in right.items())
    new_console(stderr=True).print(
        f"{len(prompts):,} pairs in {options.output}: {shares}", highlight=False, markup=False
    )


def require_writable(path: Path) -> None:
    """Raises OutputError if `open_output` would, as far as can be determined without touching the file."""
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise OutputError(f"-o {path}: cannot be written; give a file in an existing folder")


def open_output(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"-o {path}: cannot be written: {reason_of(error)}; give a file in an existing folder"
        ) from error


async def open_model(model: str, trust: tuple[Path, ...]) -> Executor:
    announcement = Announcement()
    with announcement.loading():
        opener = LocalOpener(LocalOptions(trust=trust), announcement.progress)
        return await (await opener.prepare(model, None)).open()


async def open_far(options: RouterLog, environment: Mapping[str, str]) -> tuple[Executor, str]:
    """The far side, and its name for its model."""
    from ..executors.upstream_executor import UpstreamOpener, UpstreamOptions, only_model

    if not options.far.startswith(("http://", "https://")):
        return await open_model(options.far, options.trust), options.far
    api_key = key_of(environment, "--far-api-key-env", options.far_api_key_env)
    url = options.far.rstrip("/").removesuffix("/v1")
    upstream = UpstreamOptions((url,), name="far", api_key=api_key)
    model = options.far_model or await only_model(upstream)
    return await (await UpstreamOpener(upstream).prepare(model, None)).open(), model


# --- fit ---


def require_scipy(step: str) -> None:
    """Raises ToolError."""
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ToolError(f"nearfar router {step} needs SciPy: pip install 'nearfar[router]'") from error


def embedded(
    options: Encoding, *lists: list[Pair], components: Components | None = None
) -> tuple[str, list[list[Pair]]]:
    """The name of the embedding model, and the pairs with their prompts' vectors. ``components`` are those of the
    policy, if there is one.
    """
    from ..router.sides.local_embedder import encoder_of

    async def embed() -> tuple[str, list[list[Pair]]]:
        executor = await open_model(options.encoder, options.trust)
        try:
            encoder = encoder_of(options.encoder, executor, components)
            return encoder.model.name, [await embed_prompts(pairs, encoder) for pairs in lists]
        finally:
            await executor.close()

    return asyncio.run(embed())


def run_fit(options: RouterFit) -> None:
    if options.min_quality is not None and options.max_far_share is not None:
        raise RequestError("--min-quality and --max-far-share exclude each other; remove one of the two options")
    require_scipy("fit")
    from ..router.fitting.fit import fit
    from ..router.fitting.pairs import read_pairs
    from ..router.fitting.penalties import STEPS

    pairs, encoder = read_pairs(options.pairs), None
    if "embedding" in options.features:
        encoder, (pairs,) = embedded(options, pairs)
    wanted = None
    if options.min_quality is not None or options.max_far_share is not None:
        wanted = Wanted(quality=options.min_quality, far_share=options.max_far_share)
    with progress_bars(transient=True) as bars:
        bars.start()
        task = bars.add_task("fitting", total=STEPS)
        result = fit(
            pairs,
            wanted=wanted,
            signals="signals" in options.features,
            encoder=encoder,
            advance=lambda: bars.advance(task),
        )
    policy = {
        "version": 1,
        "mode": "auto",
        "quality": {
            "predictor": result.predictor.model_dump(mode="json", exclude_none=True),
            "threshold": result.threshold,
        },
    }
    Policy.read(policy)
    with open_output(options.output) as output:
        output.write(json.dumps(policy) + "\n")
    console = new_console()
    console.print(fit_table(result))
    for side, found in (("near", result.near), ("far", result.far)):
        weights = ", ".join(f"{name} {weight:+.2f}" for name, weight in found.top)
        console.print(f"{side} is right: {weights}", highlight=False, markup=False)
    read = ", ".join(f"{block} (penalty {penalty:g})" for block, penalty in result.penalties.blocks())
    apart = f"{result.penalties.apart:g} times that on the difference of the sides"
    console.print(f"chosen on held-out groups: {read}; {apart}")
    console.print(
        f"fitted on {len(pairs):,} pairs; above {result.threshold:+.3f} the far side answers: "
        f"{result.far_share:.1%} of these prompts, and "
        f"{result.quality:.1%} of the answers are right",
        highlight=False,
    )


def fit_table(result: FitResult) -> Table:
    made = Table(
        box=HORIZONTALS,
        show_edge=False,
        pad_edge=False,
        caption="measured on pairs that the regression was not fitted on",
    )
    made.add_column("probability that")
    for column in ("AUC", "Brier", "calibration error", "right"):
        made.add_column(column, justify="right")
    for side, found in (("near", result.near), ("far", result.far)):
        made.add_row(f"{side} is right", *side_cells(found))
    return made


def side_cells(found: SideReport) -> tuple[str, ...]:
    area = "-" if found.auc is None else f"{found.auc:.3f}"
    return area, f"{found.brier:.3f}", f"{found.calibration_error:.3f}", f"{found.right:.1%}"


# --- eval ---


def run_eval(options: RouterEval) -> None:
    from ..router.fitting.evaluation import evaluate
    from ..router.fitting.pairs import read_pairs, rights
    from ..router.fitting.plots import plot
    from ..router.fitting.scores import all_scores

    pairs, policy = read_pairs(options.pairs), Policy.read(options.policy)
    if options.refits is not None and options.fitted_on is None:
        raise RequestError("--refits needs --fitted-on, the pairs that the policy was fitted on")
    fitted_on = [] if options.fitted_on is None else read_pairs(options.fitted_on)
    predictor, threshold, components = policy.quality.predictor, policy.quality.threshold, policy.quality.components
    if components is not None:
        _, (pairs, fitted_on) = embedded(options, pairs, fitted_on, components=components)
    scores = all_scores(pairs, policy)
    found = evaluate(*rights(pairs), scores, threshold)
    if fitted_on:
        assert predictor is not None
        refits = refitted(fitted_on, predictor, pairs, options.refits or REFITS)
        found = evaluate(*rights(pairs), scores, threshold, refits)
    if options.plot is not None:
        plot(found, options.plot)
    if options.json:
        print_json(found.to_json())
        return
    console = new_console()
    console.print(eval_table(found))
    console.print(
        f"near is right on {found.near_quality:.1%} of {found.prompts:,} prompts, far on {found.far_quality:.1%}; "
        "the policy sends "
        f"{found.far_share:.1%} far and is right on {found.quality:.1%}",
        highlight=False,
    )


def refitted(fitted_on: Sequence[Pair], predictor: Predictor, pairs: Sequence[Pair], count: int) -> Array:
    """As `scores_of_refits`, with its progress."""
    require_scipy("eval --fitted-on")
    from ..router.fitting.refits import scores_of_refits, steps

    with progress_bars(transient=True) as bars:
        bars.start()
        task = bars.add_task("refitting", total=steps(count))
        return scores_of_refits(fitted_on, predictor, pairs, count, lambda: bars.advance(task))


def eval_table(found: Evaluation) -> Table:
    made = Table(
        box=HORIZONTALS,
        show_edge=False,
        pad_edge=False,
        caption="below each figure: its 95 % bootstrap interval over prompts"
        + (f" and {found.refits} refits" if found.refits else ""),
    )
    made.add_column("policy")
    for column in ("APGR", "auto ahead", "CPT(50 %)", "CPT(80 %)", f"at {found.far_share:.0%} far"):
        made.add_column(column, justify="right", no_wrap=True)
    for name, worth in found.policies.items():
        made.add_row(
            f"[bold]{name}" if name == "auto" else name,
            f"{worth.apgr:.3f}\n{between(worth.apgr_95)}",
            "" if name == "auto" else f"{worth.ahead:+.3f}\n{between(worth.ahead_95, '+.2f')}",
            f"{worth.cpt50:.1%}\n{between(worth.cpt50_95, '.0%')}",
            f"{worth.cpt80:.1%}\n{between(worth.cpt80_95, '.0%')}",
            f"{worth.quality:.1%}",
        )
    return made


def between(ends: Interval, form: str = ".2f") -> str:
    return f"[dim]{ends[0]:{form}} – {ends[1]:{form}}[/]"


# Prompts that are embedded at once.
BATCH = 256


async def embed_prompts(pairs: Sequence[Pair], encoder: EncoderExecutor) -> list[Pair]:
    """The pairs with the vectors of their prompts, of which only as much counts as the model's context holds. Raises
    RequestError for a model that makes no embeddings.
    """
    found = []
    for start in range(0, len(pairs), BATCH):
        batch = pairs[start : start + BATCH]
        vectors = await encoder.vectors([pair.prompt for pair in batch], Call("router-fit"), is_query=True)
        found += [
            pair.model_copy(update={"embedding": tuple(vector.tolist())})
            for pair, vector in zip(batch, vectors, strict=True)
        ]
    return found
