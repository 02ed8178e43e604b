"""Every kernel template against its op in numpy, on wgpu (naga, lavapipe) and on Dawn (Tint, SwiftShader)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
from case_arrays import nothing
from case_selection import chosen, names_of, selected
from elementwise_cases import part_of
from kernel_cases import all_cases, webgpu_steps
from kernel_harness import Case, Gpu, LoweredCase, Run, run_on_dawn
from projection_cases import HALF_TILES, HALF_VECTORS, extreme_projection
from sampling_cases import SETTINGS, adversarial_case, chunked_case, sample_case, sample_run
from tolerances import F16_PRODUCTS, relative_error

from nearfar.compiler.ir.ops import OPS
from nearfar.compiler.ir.ops.op import ACTIVATIONS
from nearfar.compiler.ir.sampling import Sampler, Settings
from nearfar.compiler.kernels.elementwise import elementwise, take_rows
from nearfar.compiler.kernels.sample import sample
from nearfar.compiler.kernels.sample_chunks import CHUNK, sample_chunks
from nearfar.compiler.kernels.sample_merge import sample_merge

# Templates that multiply in float16, of each kind and shape.
PRODUCTS = [*HALF_VECTORS, *HALF_TILES]
CASES = selected("webgpu", all_cases())


# A tiny Qwen 3 there has joint attention and projections of single tokens and of prompts.
IN_CHROMIUM = (
    *("linear_vector_", "linear_tile_", "embed_", "take_rows_", "rms_norm_"),
    *("rotated_attention_decode_", "rotated_attention_split_", "attention_mixed_", "attention_tile_"),
    *("gate_activation_relu", "gate_activation_tanh", "gate_activation_sigmoid", "gate_activation_none"),
)


def once_per_template(cases: Mapping[str, Case]) -> dict[str, Case]:
    """The cases that run on Dawn; all but the first usual one of each template are exhaustive, and those of templates
    that answers in Chromium run. SwiftShader takes a second or two to compile a kernel with workgroup memory, and
    `test_webgpu_lower.py` has Tint's opinion of all.
    """
    seen: set[str] = set()
    found = {}
    for name, case in cases.items():
        template = re.split(r"_(?=[a-z]*\d)", name)[0]
        again = template in seen or name.startswith(IN_CHROMIUM)
        found[name] = replace(case, exhaustive=case.exhaustive or again)
        seen |= set() if case.exhaustive else {template}
    return found


ON_DAWN = once_per_template({case.name: case for case in all_cases() if case.on_dawn})
STEPS = selected("webgpu steps", webgpu_steps())


class Lowered(dict[str, LoweredCase]):
    """Each case is lowered when it is first used, so that a single test is fast."""

    def __missing__(self, name: str) -> LoweredCase:
        self[name] = CASES[name].lowered()
        return self[name]


@pytest.fixture(scope="module")
def lowered() -> Mapping[str, LoweredCase]:
    return Lowered()


@pytest.fixture(scope="module")
def gpu(vulkan: None) -> Iterator[Gpu]:  # noqa: ARG001
    device = Gpu()
    yield device
    device.close()


@pytest.fixture(scope="module")
def dawn_outputs(
    lowered: Mapping[str, LoweredCase],
    node: str,
    swiftshader: Mapping[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Mapping[str, list[dict[str, bytes]]]:
    cases = [lowered[name] for name in chosen(request, ON_DAWN, test="test_a_kernel_computes_its_op_on_dawn")]
    return run_on_dawn(cases, node, swiftshader, tmp_path_factory.mktemp("dawn"))


@pytest.mark.parametrize("name", names_of(CASES))
def test_a_kernel_computes_its_op_on_wgpu(name: str, lowered: Mapping[str, LoweredCase], gpu: Gpu) -> None:
    case = lowered[name]
    for run in case.runs:
        case.check(run, gpu.run(case, run))


@pytest.mark.parametrize("name", names_of(STEPS))
def test_every_row_of_a_step_computes_its_op(name: str, gpu: Gpu) -> None:
    case = STEPS[name].lowered()
    for run in case.runs:
        case.check(run, gpu.run(case, run))


@pytest.mark.parametrize("name", names_of(ON_DAWN))
def test_a_kernel_computes_its_op_on_dawn(
    name: str, lowered: Mapping[str, LoweredCase], dawn_outputs: Mapping[str, list[dict[str, bytes]]]
) -> None:
    for run, outputs in zip(lowered[name].runs, dawn_outputs[name], strict=True):
        lowered[name].check(run, outputs)


def test_a_grid_wider_than_65535_workgroups_reaches_every_column(gpu: Gpu) -> None:
    columns = 65_536 * 64 + 1
    x = np.arange(columns, dtype=np.float32).reshape(1, columns)
    run = Run({"S": 1, "R": 1}, {"x": x, "rows": np.zeros(1, np.int32), "y": nothing(x.shape, "float32")}, {"y": x})
    case = Case("take_rows_wide", lambda: take_rows("take_rows", "S", "R", columns), lambda: [run]).lowered()
    assert case.launches(run)[0].grid == (65_535, 1, 2)
    case.check(run, gpu.run(case, run))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_within_a_millionth_of_its_definition(activation: str, gpu: Gpu) -> None:
    x = np.linspace(-12, 12, 24_001, dtype=np.float32)[None]
    inputs = {"gate": x, "up": np.ones_like(x)}
    y, part = OPS["gate"].run(inputs, {"activation": activation}), part_of("gate", inputs, {"activation": activation})
    assert y is not None
    run = Run({"S": 1}, {**inputs, "y": nothing(x.shape, "float32")}, {"y": y})
    case = Case(f"gate_{activation}", lambda: elementwise("gate", "S", x.shape[1], part), lambda: [run]).lowered()
    found = np.frombuffer(gpu.run(case, run)["y"], np.float32, x.size)
    assert (np.abs(found - y[0]) <= 1e-6 * np.maximum(np.abs(y[0]), 1)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_of_a_huge_value_is_its_limit(activation: str, gpu: Gpu) -> None:
    x = np.array([[-1e12, -1e4, 1e4, 1e12]], np.float32)
    inputs = {"gate": x, "up": np.ones_like(x)}
    y, part = OPS["gate"].run(inputs, {"activation": activation}), part_of("gate", inputs, {"activation": activation})
    assert y is not None
    run = Run({"S": 1}, {**inputs, "y": nothing(x.shape, "float32")}, {"y": y})
    case = Case(f"gate_{activation}", lambda: elementwise("gate", "S", x.shape[1], part), lambda: [run]).lowered()
    found = np.frombuffer(gpu.run(case, run)["y"], np.float32, x.size)
    np.testing.assert_allclose(found, y[0], rtol=1e-6, atol=1e-6)


@pytest.mark.exhaustive
def test_a_large_vocabulary_is_sampled_by_many_workgroups(gpu: Gpu) -> None:
    columns = 151_936
    kernels = lambda: [sample_chunks("chunks", columns), sample_merge("merge", columns)]  # noqa: E731
    cases = [adversarial_case(columns, CHUNK), replace(sample_case(columns, SETTINGS[5:]), build=kernels)]
    for case in map(Case.lowered, cases):
        for run in case.runs:
            case.check(run, gpu.run(case, run))


@pytest.mark.parametrize("shared", [False, True])
def test_drawn_tokens_have_the_frequencies_of_their_probabilities(shared: bool, gpu: Gpu) -> None:
    logits = np.array([0.3, -1.2, 1.9, 1.7, -0.4, 0.8, 1.1, -3.0, 0.0, 1.5], np.float32)
    sampler = Sampler(temperature=1.0, state=77)
    draws = [sampler.draw() for _ in range(500)]
    settings = [Settings(temperature=0.8, top_k=8, top_p=0.93, min_p=0.05, draw=draw) for draw in draws]
    run = sample_run(
        {
            "logits": np.tile(logits, (len(draws), 1)),
            "adjusted": np.zeros((0, len(logits)), np.float32),
            "settings": np.array(settings, np.float32),
            "slots": np.full((len(draws), 2), [-1, 0], np.int32),
            "sampled": np.zeros(1, np.int32),
            "counts": np.zeros((1, len(logits)), np.int32),
            "logprobs": np.zeros(len(draws), np.float32),
        }
    )
    case = Case("sample_frequencies", lambda: sample("sample", len(logits)), lambda: [run])
    lowered = (chunked_case(case, len(logits), 256) if shared else case).lowered()
    found = np.bincount(np.frombuffer(gpu.run(lowered, run)["y"], np.int32, len(draws)), minlength=len(logits))
    # Computed by hand: among the eight largest, 1.9, 1.7, 1.5, 1.1, 0.8 and 0.3 together reach 0.93, and min_p keeps
    # all of them.
    kept = logits >= np.float32(0.3)
    expected = np.where(kept, np.exp(logits.astype(np.float64) / 0.8), 0)
    expected *= len(draws) / expected.sum()
    assert not found[~kept].any()
    chi_square = ((found - expected)[kept] ** 2 / expected[kept]).sum()
    # The 0.999 quantile at five degrees of freedom.
    assert chi_square < 20.5


@pytest.mark.parametrize("template", PRODUCTS)
@pytest.mark.parametrize("quantization", ["q4f16", "q8f16"])
def test_sums_of_products_in_float16_do_not_overflow(quantization: str, template: str, gpu: Gpu) -> None:
    """All products of a row have the same sign and the largest code."""
    sizes = [1.0, 1e4, 65504, 1e30, 1e-30]
    with np.errstate(over="ignore"):
        assert np.isinf(np.full(32, 1e4, np.float16).sum(dtype=np.float16))
    assert_rows_are_exact(gpu, extreme_projection(template, quantization, [[size] for size in sizes]))


@pytest.mark.parametrize("template", PRODUCTS)
def test_float16_products_are_exact_beside_an_outlier(template: str, gpu: Gpu) -> None:
    """The first element of each block is large, and its weight is 0."""
    rows = [[outlier, *np.linspace(-0.5, 1, 31)] for outlier in (1e4, -1e5)]
    assert_rows_are_exact(gpu, extreme_projection(template, "q4f16", rows, zeros=1))


def assert_rows_are_exact(gpu: Gpu, case: Case) -> None:
    lowered = case.lowered()
    (run,) = lowered.runs
    expected = run.expected["y"]
    found = np.frombuffer(gpu.run(lowered, run)["y"], np.float32, expected.size).reshape(expected.shape)
    for row, values in zip(expected, found, strict=True):
        assert relative_error(values, row) < F16_PRODUCTS, values[:4]
