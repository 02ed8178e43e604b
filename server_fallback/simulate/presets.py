"""Presets: published step costs and lengths, as small fitted parameters with their sources.

* DistServe (Zhong et al., OSDI 2024), github.com/LLMServe/DistServe (Apache-2.0), simdistserve/estimators: the profiles
  that its simulator has of DistServe and of vLLM on NVIDIA A100 80 GB, and the tokens that fit beside the weights. The
  lengths are quantiles of 197 requests that its benchmark drew from ShareGPT (simdistserve/benchmarks/alignment,
  vllm-200-2.exp).
* Splitwise (Patel et al., ISCA 2024), github.com/Mutinifni/splitwise-sim (MIT): medians of the measurements in
  data/perf_model.csv with 8 GPUs, and the moments of Azure's traces that generate_trace.py states.
* tests/bench/results/h200-cuda.json: our own kernels on an NVIDIA H200; `tests/bench/h200_costs.py` fits the costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, log, sqrt
from types import MappingProxyType

from .costs import StepCosts
from .device import Device
from .lengths import Lengths, LogNormal, Quantiles

MILLISECOND = 1e-3
# The engines that were measured prepare a step when the one before it is done.
ONE_STEP = 1
# Up to here DistServe's fit of decoding holds, and from there its fit of prefill is used.
MOST_DECODING, LEAST_PREFILL, MOST_POSITIONS = 95, 128, 8192


def distserve_costs(prefill: tuple[float, float, float], decode: tuple[float, float, float]) -> StepCosts:
    """From DistServe's fits in milliseconds: a prompt of n tokens takes a + b n + c n^2, and a step that decodes takes
    a + b keys + c sequences.
    """
    fixed, by_token, by_square = prefill
    start, by_key, by_sequence = decode
    knots = (
        *((count, start + by_sequence * count) for count in (1, MOST_DECODING)),
        *((count, fixed + by_token * count) for count in (LEAST_PREFILL, MOST_POSITIONS)),
    )
    # A prompt of n tokens has n (n + 1) / 2 pairs.
    return StepCosts(
        tuple((float(count), cost * MILLISECOND) for count, cost in knots),
        read=by_key * MILLISECOND,
        pair=2 * max(0.0, by_square) * MILLISECOND,
    )


def opt(name: str, gpus: int, tokens: int, token_bytes: int, costs: StepCosts) -> Device:
    return Device(
        f"{name} on {gpus} x A100 80 GB", "DistServe, simdistserve/estimators", costs, tokens, token_bytes,
        context=2048, gpus=gpus, lookahead=ONE_STEP,
    )  # fmt: skip


def splitwise(
    model: str,
    gpu: str,
    prompts: Mapping[int, float],
    tokens: Mapping[int, float],
    long: float,
    *,
    cache_tokens: int,
    token_bytes: int,
    context: int,
) -> Device:
    """A model in float16 on 8 GPUs. ``prompts``: milliseconds of a prompt by its tokens. ``tokens``: those of a step
    that decodes, by its sequences, after 512 to 640 tokens each; ``long``: of one sequence after 8,192.
    """
    middle = 576
    read = max(0.0, (long - tokens[1]) / (8192 - middle))
    decoding = {count: cost - read * count * middle for count, cost in tokens.items()}
    knots: list[tuple[float, float]] = []
    for count, cost in sorted({**decoding, **{count: cost for count, cost in prompts.items() if count > 128}}.items()):
        # Medians of neighbours may fall by a percent.
        knots.append((float(count), max(cost * MILLISECOND, knots[-1][1] if knots else 0.0)))
    return Device(
        f"{model} on 8 x {gpu} 80 GB", "Splitwise, splitwise-sim/data/perf_model.csv",
        StepCosts(tuple(knots), read=read * MILLISECOND), cache_tokens, token_bytes, context, gpus=8,
        lookahead=ONE_STEP,
    )  # fmt: skip


def h200(name: str, costs: StepCosts, token_bytes: int) -> Device:
    """In ``q4f16``. 100 of the GPU's 150 GB are for keys and values."""
    tokens = 100_000_000_000 // token_bytes
    return Device(f"{name} on an H200", "tests/bench/h200_costs.py", costs, tokens, token_bytes, context=8192)


OPT_13B_TOKEN, OPT_66B_TOKEN = 40 * 5120 * 4, 64 * 9216 * 4

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "qwen3-0.6b-h200": h200(
            "Qwen3-0.6B",
            StepCosts(
                ((1.0, 0.000753545), (64.0, 0.00182560), (256.0, 0.00264460), (4096.0, 0.0215557)),
                row=2.61448e-6, read=3.95696e-8, pair=1.72030e-10,
            ),
            28 * 8 * 128 * 4,
        ),
        "llama-3.1-8b-h200": h200(
            "Llama-3.1-8B",
            StepCosts(
                ((1.0, 0.00237026), (64.0, 0.00533456), (256.0, 0.0152685), (4096.0, 0.185152)),
                read=9.05834e-8, pair=8.08050e-10,
            ),
            32 * 8 * 128 * 4,
        ),
        "opt-13b-a100": opt(
            "OPT-13B (DistServe)", 1, 66_144, OPT_13B_TOKEN,
            distserve_costs((16.456860, 0.0926475, 6.474786e-6), (19.934703, 6.269357e-4, 0.0385070)),
        ),
        "opt-13b-2a100": opt(
            "OPT-13B (DistServe)", 2, 163_008, OPT_13B_TOKEN,
            distserve_costs((13.402703, 0.0623429, 2.226884e-6), (13.294796, 3.410922e-4, 0.0629640)),
        ),
        "opt-66b-2a100": opt(
            "OPT-66B (DistServe)", 2, 11_600, OPT_66B_TOKEN,
            distserve_costs((39.144376, 0.2492994, 2.043458e-5), (48.288015, 9.424344e-4, 0.1275502)),
        ),
        "opt-66b-4a100": opt(
            "OPT-66B (DistServe)", 4, 78_496, OPT_66B_TOKEN,
            distserve_costs((26.765124, 0.1375929, 7.561319e-6), (30.760285, 4.519476e-4, 0.0632842)),
        ),
        "opt-13b-a100-vllm": opt(
            "OPT-13B (vLLM)", 1, 66_144, OPT_13B_TOKEN,
            distserve_costs((23.627362, 0.1505456, 8.653484e-6), (19.562534, 4.941121e-4, 0.0506057)),
        ),
        "opt-13b-2a100-vllm": opt(
            "OPT-13B (vLLM)", 2, 163_008, OPT_13B_TOKEN,
            distserve_costs((19.600576, 0.0646752, 6.037182e-6), (20.450487, 1.870012e-4, 0.0726316)),
        ),
        "llama2-70b-8a100": splitwise(
            "Llama-2-70B", "A100",
            {128: 65.3, 256: 66.8, 512: 94.3, 1024: 154.5, 2048: 274.2, 4096: 661.2, 8192: 1549.8},
            {1: 44.8, 2: 44.6, 4: 45.8, 8: 46.4, 16: 50.4, 32: 53.0, 64: 71.6},
            46.5, cache_tokens=1_200_000, token_bytes=327_680, context=8192,
        ),
        "llama2-70b-8h100": splitwise(
            "Llama-2-70B", "H100",
            {128: 58.2, 256: 51.7, 512: 53.4, 1024: 77.9, 2048: 136.8, 4096: 390.3, 8192: 844.9},
            {1: 29.7, 2: 30.3, 4: 31.6, 8: 32.5, 16: 34.2, 32: 38.6, 64: 50.2},
            31.4, cache_tokens=1_200_000, token_bytes=327_680, context=8192,
        ),
        # The 352 GB of weights leave room for as many keys and values of 4 MB.
        "bloom-176b-8a100": splitwise(
            "BLOOM-176B", "A100",
            {128: 79.7, 256: 99.2, 512: 173.8, 1024: 289.2, 2048: 540.4, 4096: 1348.2, 8192: 3593.2},
            {1: 48.8, 2: 50.0, 4: 51.0, 8: 53.0, 16: 57.3, 32: 65.4, 64: 96.6},
            51.3, cache_tokens=70_000, token_bytes=4_014_080, context=16_384,
        ),
        "bloom-176b-8h100": splitwise(
            "BLOOM-176B", "H100",
            {128: 48.3, 256: 51.2, 512: 75.5, 1024: 132.6, 2048: 253.1, 4096: 688.7, 8192: 1535.4},
            {1: 36.1, 2: 36.9, 4: 38.1, 8: 38.1, 16: 40.6, 32: 45.8, 64: 63.8},
            37.4, cache_tokens=70_000, token_bytes=4_014_080, context=16_384,
        ),
    }
)  # fmt: skip


def lognormal(mean: float, deviation: float, least: int, most: int) -> LogNormal:
    """With these moments, before lengths outside ``least`` to ``most`` are drawn again."""
    variance = log(1 + (deviation / mean) ** 2)
    return LogNormal(kind="lognormal", median=mean / exp(variance / 2), sigma=sqrt(variance), least=least, most=most)


# Of prompts and of answers.
LENGTHS: Mapping[str, tuple[Lengths, Lengths]] = MappingProxyType(
    {
        "sharegpt": (
            Quantiles(
                kind="quantiles",
                tokens=[
                    9, 39, 104, 169, 278, 344, 389, 461, 537, 632, 740, 812, 864, 948, 1016, 1174, 1334, 1439, 1514,
                    1703, 2003,
                ],
            ),
            Quantiles(
                kind="quantiles",
                tokens=[2, 4, 8, 9, 12, 16, 20, 26, 34, 42, 58, 86, 135, 192, 227, 258, 303, 404, 476, 548, 894],
            ),
        ),
        "azure-conversation": (lognormal(1155, 1109, 2, 14_050), lognormal(211, 163, 7, 1000)),
        "azure-code": (lognormal(2048, 1973, 3, 7437), lognormal(28, 60, 6, 1899)),
    }
)  # fmt: skip
