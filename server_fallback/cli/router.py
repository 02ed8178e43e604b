"""nearfar router log | fit | eval: log the answers of both sides, fit a policy to them, and evaluate the policy."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from nearfar.compiler.cli.output import add_command
from nearfar.compiler.cli.sign import add_trust, trusted_keys
from nearfar.compiler.errors import RequestError, ToolError

from .numbers import count

if TYPE_CHECKING:
    from rich.table import Table

    from ..executors.executor import Executor
    from ..router.decision.predictor import Components, Predictor
    from ..router.fitting.evaluation import Evaluation, Interval
    from ..router.fitting.fit import FitResult
    from ..router.fitting.pairs import Array, Pair
    from ..router.fitting.prompts import Prompt
    from ..router.fitting.reliability import SideReport

EXAMPLE = "nearfar router log --near demo --far http://127.0.0.1:8000 --prompts prompts.jsonl -o pairs.jsonl"

# About a minute for 2,000 pairs.
REFITS = 40


def add_parser(commands: Any) -> None:
    router = add_command(commands, "router", run_log, example=EXAMPLE)
    steps = router.add_subparsers(metavar="STEP", required=True)
    log = add_command(steps, "log", run_log, summary="send the same prompts to both sides", example=EXAMPLE)
    log.add_argument("--near", metavar="MODEL", required=True, help="a bundle; a Hugging Face folder or name; or demo")
    add_trust(log)
    log.add_argument(
        "--far",
        metavar="URL|MODEL",
        required=True,
        help="an OpenAI-compatible server, or a model in any form that --near accepts",
    )
    log.add_argument("--far-model", metavar="NAME", help="the server's name for its model (default: its only model)")
    log.add_argument(
        "--far-api-key-env", metavar="NAME", help="the environment variable that holds the server's API key"
    )
    log.add_argument(
        "--prompts", type=Path, metavar="FILE", required=True,
        help='JSON lines: {"prompt", "expected" or "accepted"}',
    )  # fmt: skip
    log.add_argument("--count", type=count, metavar="N", help="only the first N prompts (default: all)")
    log.add_argument(
        "--max-tokens", type=count, default=256, metavar="N", help="the longest answer in tokens (default: %(default)s)"
    )
    log.add_argument(
        "--concurrency", type=count, default=32, metavar="N", help="prompts sent at once (default: %(default)s)"
    )
    log.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        required=True,
        help="write the answers of both sides to this file, as JSON lines",
    )
    fit = add_command(
        steps, "fit", run_fit, summary="fit a policy to logged pairs",
        example="nearfar router fit pairs.jsonl --max-far-share 0.3 -o policy.json",
    )  # fmt: skip
    fit.add_argument("pairs", type=Path, metavar="PAIRS", help="the output of 'nearfar router log'")
    target = fit.add_mutually_exclusive_group()
    target.add_argument(
        "--min-quality",
        type=share,
        metavar="Q",
        help="answer at least this share correctly, with as few far requests as possible",
    )
    target.add_argument(
        "--max-far-share", type=share, metavar="S", help="send at most this share of the prompts to the far side"
    )
    fit.add_argument(
        "--features",
        choices=("signals", "embedding"),
        nargs="+",
        default=[],
        help="read these too: near's signals, so that near begins every answer that the policy decides by quality; the "
        "embedding that --encoder makes of the prompt",
    )
    add_encoder(fit)
    fit.add_argument("-o", "--output", type=Path, metavar="FILE", required=True, help="the policy")
    evaluation = add_command(
        steps, "eval", run_eval, summary="compare a policy with others on logged pairs",
        example="nearfar router eval held-out.jsonl --policy policy.json --plot eval.png",
    )  # fmt: skip
    evaluation.add_argument("pairs", type=Path, metavar="PAIRS", help="logged pairs that the policy was not fitted on")
    evaluation.add_argument(
        "--policy", type=Path, metavar="FILE", required=True, help="the output of 'nearfar router fit'"
    )
    evaluation.add_argument(
        "--fitted-on",
        type=Path,
        metavar="PAIRS",
        help="the pairs that the policy was fitted on, for intervals that include the fit's uncertainty",
    )
    evaluation.add_argument(
        "--refits", type=count, metavar="N", help=f"fits to resamples of these pairs (default: {REFITS})"
    )
    evaluation.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw quality by far share into this file, a PNG or SVG"
    )
    evaluation.add_argument("--json", action="store_true", help="print one JSON object")
    add_encoder(evaluation)


def add_encoder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--encoder",
        metavar="MODEL",
        default="demo-encoder",
        help="the embedding model of a policy that reads embeddings, as for nearfar serve (default: %(default)s)",
    )
    add_trust(parser)


def share(text: str) -> float:
    """From 0 to 1. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{value} is not between 0 and 1")
    return value


# --- log ---


def run_log(options: argparse.Namespace) -> None:
    """Raises ToolError if the server's libraries are missing, and the errors of the sides; pairs that are already
    logged remain in the file.
    """
    import asyncio

    try:
        import httpx  # noqa: F401
    except ImportError as error:
        raise ToolError(f"nearfar router log needs {error.name}: pip install 'nearfar[serve]'") from error
    asyncio.run(log_pairs(options, read_prompts(options), os.environ))


def read_prompts(options: argparse.Namespace) -> Sequence[Prompt]:
    from ..router.fitting.prompts import Prompt

    prompts = Prompt.read(options.prompts)[: options.count]
    if not prompts:
        raise RequestError(
            f"--prompts {options.prompts}: the file has no prompt; write lines such as "
            f'{{"prompt": "2+2?", "expected": "4"}}'
        )
    return prompts


async def log_pairs(options: argparse.Namespace, prompts: Sequence[Prompt], environment: Mapping[str, str]) -> None:
    from contextlib import AsyncExitStack, aclosing

    from rich.console import Console

    from nearfar.compiler.cli.phases import progress_bars

    from ..router.fitting.query_both import query_both

    right = {"near": 0, "far": 0}
    async with AsyncExitStack() as opened:
        # Check before any slow work, but keep the pairs of an earlier run until both sides are open.
        require_writable(options.output)
        near = await open_model(options.near, options)
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
    Console(stderr=True).print(f"{len(prompts):,} pairs in {options.output}: {shares}", highlight=False, markup=False)


def require_writable(path: Path) -> None:
    """Raises OutputError if `open_output` would, as far as can be determined without touching the file."""
    from nearfar.compiler.errors import OutputError

    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise OutputError(f"-o {path}: cannot be written; give a file in an existing folder")


def open_output(path: Path) -> TextIO:
    from nearfar.compiler.errors import OutputError, reason_of

    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"-o {path}: cannot be written: {reason_of(error)}; give a file in an existing folder"
        ) from error


async def open_model(model: str, options: argparse.Namespace) -> Executor:
    from ..executors.local_opener import LocalOpener, LocalOptions
    from .announcement import Announcement

    announcement = Announcement()
    with announcement.loading():
        return await (
            await LocalOpener(LocalOptions(trust=tuple(trusted_keys(options))), announcement.progress).prepare(
                model, None
            )
        ).open()


async def open_far(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[Executor, str]:
    """The far side, and its name for its model."""
    from ..executors.upstream_executor import UpstreamOpener, UpstreamOptions, only_model

    if not options.far.startswith(("http://", "https://")):
        return await open_model(options.far, options), options.far
    variable = options.far_api_key_env
    if variable is not None and not environment.get(variable):
        raise RequestError(f"--far-api-key-env {variable}: this environment variable is not set")
    url = options.far.rstrip("/").removesuffix("/v1")
    upstream = UpstreamOptions((url,), name="far", api_key=environment[variable] if variable is not None else None)
    model = options.far_model or await only_model(upstream)
    return await (await UpstreamOpener(upstream).prepare(model, None)).open(), model


# --- fit ---


def require_scikit_learn(step: str) -> None:
    """Raises ToolError."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise ToolError(f"nearfar router {step} needs scikit-learn: pip install 'nearfar[router]'") from error


def embedded(
    options: argparse.Namespace, *lists: list[Pair], components: Components | None = None
) -> tuple[str, list[list[Pair]]]:
    """The name of the embedding model, and the pairs with their prompts' vectors. ``components`` are those of the
    policy, if there is one.
    """
    import asyncio

    from ..router.fitting.embed_prompts import embed_prompts
    from ..router.sides.local_embedder import encoder_of

    async def embed() -> tuple[str, list[list[Pair]]]:
        executor = await open_model(options.encoder, options)
        try:
            encoder = encoder_of(options.encoder, executor, components)
            return encoder.model.name, [await embed_prompts(pairs, encoder) for pairs in lists]
        finally:
            await executor.close()

    return asyncio.run(embed())


def run_fit(options: argparse.Namespace) -> None:
    import json

    from rich.console import Console

    from nearfar.compiler.cli.phases import progress_bars

    require_scikit_learn("fit")
    from ..router.decision.policy import Policy
    from ..router.decision.predictor import Wanted
    from ..router.fitting.fit import STEPS, fit
    from ..router.fitting.pairs import read_pairs

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
    console = Console()
    console.print(fit_table(result))
    for side, found in (("near", result.near), ("far", result.far)):
        weights = ", ".join(f"{name} {weight:+.2f}" for name, weight in found.top)
        console.print(f"{side} is right: {weights}", highlight=False, markup=False)
    console.print(
        f"fitted on {len(pairs):,} pairs; above {result.threshold:+.3f} the far side answers: "
        f"{result.far_share:.1%} of these prompts, and "
        f"{result.quality:.1%} of the answers are right",
        highlight=False,
    )


def fit_table(result: FitResult) -> Table:
    from rich.box import HORIZONTALS
    from rich.table import Table

    made = Table(
        box=HORIZONTALS,
        show_edge=False,
        pad_edge=False,
        caption="measured on pairs that the regression was not fitted on",
    )
    made.add_column("probability that")
    for column in ("AUC", "Brier", "calibration error", "right", "penalty"):
        made.add_column(column, justify="right")
    for side, found in (("near", result.near), ("far", result.far)):
        made.add_row(f"{side} is right", *side_cells(found))
    return made


def side_cells(found: SideReport) -> tuple[str, ...]:
    area = "-" if found.auc is None else f"{found.auc:.3f}"
    return area, f"{found.brier:.3f}", f"{found.calibration_error:.3f}", f"{found.right:.1%}", f"{found.ridge:g}"


# --- eval ---


def run_eval(options: argparse.Namespace) -> None:
    from rich.console import Console

    from nearfar.compiler.cli.output import print_json

    from ..router.decision.policy import Policy
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
    console = Console()
    console.print(eval_table(found))
    console.print(
        f"near is right on {found.near_quality:.1%} of {found.prompts:,} prompts, far on {found.far_quality:.1%}; "
        "the policy sends "
        f"{found.far_share:.1%} far and is right on {found.quality:.1%}",
        highlight=False,
    )


def refitted(fitted_on: Sequence[Pair], predictor: Predictor, pairs: Sequence[Pair], count: int) -> Array:
    """As `scores_of_refits`, with its progress."""
    from nearfar.compiler.cli.phases import progress_bars

    require_scikit_learn("eval --fitted-on")
    from ..router.fitting.refits import scores_of_refits, steps

    with progress_bars(transient=True) as bars:
        bars.start()
        task = bars.add_task("refitting", total=steps(count))
        return scores_of_refits(fitted_on, predictor, pairs, count, lambda: bars.advance(task))


def eval_table(found: Evaluation) -> Table:
    from rich.box import HORIZONTALS
    from rich.table import Table

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
