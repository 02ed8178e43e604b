"""The cases of every kernel template, by family: a covering set, not all combinations.

Every template meets columns that fill its steps and columns that do not, each optional input on and off, and batches of 1, 3 and 33 rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from attention_cases import attention_cases
from case_arrays import EPS, FORMATS, nothing
from elementwise_cases import elementwise_cases
from kernel_harness import Case
from lora_cases import lora_cases
from projection_cases import projection_cases, projection_run
from row_cases import embed_case, rms_norm_case, row_cases, take_rows_case
from sampling_cases import SETTINGS, adjust_logits_case, conformance_cases, sample_case, sample_run, sampling_cases, top_logprobs_case

# What the tests of other targets take from here.
__all__ = [
    "EPS",
    "FORMATS",
    "SETTINGS",
    "adjust_logits_case",
    "all_cases",
    "conformance_cases",
    "embed_case",
    "nothing",
    "projection_run",
    "rms_norm_case",
    "sample_case",
    "sample_run",
    "take_rows_case",
    "top_logprobs_case",
]


def all_cases() -> Iterator[Case]:
    yield from projection_cases()
    yield from row_cases()
    yield from attention_cases()
    yield from elementwise_cases()
    yield from lora_cases()
    yield from sampling_cases()
