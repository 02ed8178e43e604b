"""The cases of every kernel template, by family: a covering set, not all combinations.

Every template meets columns that fill its steps and columns that do not, each optional input on and off, and batches of
1, 3 and 33 rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from attention_cases import attention_cases
from elementwise_cases import elementwise_cases
from integer_cases import integer_cases
from kernel_harness import Case
from lora_cases import lora_cases
from projection_cases import projection_cases, stored_projection_cases
from rope_cases import rope_cases
from row_cases import row_cases
from sampling_cases import sampling_cases
from step_cases import step_cases

from nearfar.targets.webgpu.variants import variants_of


def portable_cases() -> Iterator[Case]:
    """Those that CUDA compiles too. Only WebGPU has variants with products of integers or float16."""
    integers = {case.name for case in integer_cases()}
    return (case for case in all_cases() if case.name not in integers and case.dtype != "float16 products")


def all_cases() -> Iterator[Case]:
    yield from projection_cases()
    yield from stored_projection_cases()
    yield from integer_cases()
    yield from row_cases()
    yield from attention_cases()
    yield from rope_cases()
    yield from elementwise_cases()
    yield from lora_cases()
    yield from sampling_cases()


def webgpu_steps() -> Iterator[Case]:
    """A case for each row of the variants of each step, which the kernels' own cases do not have."""
    yield from step_cases(variants_of, "q4f16", ("float16", "float32"), in_turn=True)
    # The rows that int8 has in addition to those of float32.
    for case in step_cases(variants_of, "q4f16", ("float32", "int8"), in_turn=True):
        if "_int8_" in case.name:
            yield case
