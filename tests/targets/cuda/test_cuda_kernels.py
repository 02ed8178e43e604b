"""Kernel templates as CUDA, compared with their ops in numpy, on the emulator. These tests use no GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from case_selection import chosen, names_of, selected
from cuda_cases import cuda_cases
from cuda_harness import Emulated, emulate
from emulated import Library
from kernel_harness import LoweredCase

from nearfar.compiler.ir import e4m3
from nearfar.targets.cuda.source import waiting, with_fresh_parts

CASES = selected("cuda", cuda_cases())


@pytest.fixture(scope="module")
def emulated(emulated_cuda: Path, request: pytest.FixtureRequest) -> Emulated:
    return emulate(list(chosen(request, CASES).values()), emulated_cuda)


@pytest.mark.parametrize("name", names_of(CASES))
def test_a_kernel_computes_its_op(name: str, emulated: Emulated) -> None:
    case = CASES[name]
    checks = LoweredCase(name, (), {}, (), case.dtype)
    for run in case.runs():
        outputs = emulated.run(case, run)
        checks.check(run, {role: array.tobytes() for role, array in outputs.items()})


@pytest.mark.parametrize(
    "name",
    names_of(
        {
            name: case
            for name, case in CASES.items()
            if name.startswith(("linear_mma_split", "linear_wgmma_split", "linear_few_split"))
        }
    ),
)
def test_split_columns_give_the_same_bits_in_any_order_of_arrival(name: str, emulated: Emulated) -> None:
    for run in CASES[name].runs():
        # The emulator runs the workgroups of some launches from the last to the first.
        outputs = {emulated.run(CASES[name], run)["y"].tobytes() for _ in range(2)}
        assert len(outputs) == 1, run.dims


def test_a_part_that_was_written_since_is_read_again() -> None:
    text = """\
  float4 v_ = a_ptr[0];
  __1.x = (half)(v_.x);
  __1.y = (half)(v_.y);
  b_ptr[0] = __1;
  a_ptr[0] = c;
  half4 __2;
  __2.x = (half)(v_.x);
  b_ptr[1] = __2;"""
    assert with_fresh_parts(text).splitlines()[5:] == [
        "  half4 __2;",
        "  float4 part_1 = a_ptr[0];",
        "  __2.x = (half)(part_1.x);",
        "  b_ptr[1] = __2;",
    ]
    assert with_fresh_parts(text).splitlines()[:5] == text.splitlines()[:5]


HEAD = 'extern "C" __global__ void __launch_bounds__(1) k('
BUFFERS = ("x", "weight.q", "scratch.sums", "y")
SIGNATURE = (
    HEAD + "float* __restrict__ x_ptr, uint* __restrict__ weight_q_ptr, float* __restrict__ sums_ptr, "
    "float* __restrict__ y_ptr) {"
)


def test_every_kernel_waits_before_it_uses_anything_but_weights() -> None:
    text = waiting(SIGNATURE + "\n  y_ptr[0] = x_ptr[0];\n}", BUFFERS)
    assert text.splitlines()[1:3] == ["  wait_for_previous_kernel();", "  allow_next_kernel();"]
    early = "\n  uint q = weight_q_ptr[0];\n  wait_for_previous_kernel();\n  allow_next_kernel();\n"
    assert early in waiting(SIGNATURE + early + "  y_ptr[0] = x_ptr[0];\n}", BUFFERS)
    for line in ("float x = x_ptr[0];", "y_ptr[0] = 0.0f;", "float sum = sums_ptr[0];"):
        with pytest.raises(AssertionError, match=r"uses \w+_ptr before it waits"):
            waiting(SIGNATURE + f"\n  {line}" + early + "}", BUFFERS)
    with pytest.raises(AssertionError, match="waits more than once"):
        waiting(SIGNATURE + early + early + "}", BUFFERS)


def test_the_compiler_may_assume_only_of_weights_and_results_that_nobody_else_changes_them() -> None:
    body = "\n  sums_ptr[0] = x_ptr[0];\n  __syncthreads();\n  y_ptr[x_index(0)] = weight_q_ptr[0] + sums_ptr[0];\n}"
    head = waiting(SIGNATURE + body, BUFFERS).splitlines()[0]
    assert head == HEAD + "float* x_ptr, uint* __restrict__ weight_q_ptr, float* sums_ptr, float* __restrict__ y_ptr) {"
    assert "float* y_ptr" in waiting(SIGNATURE + body.replace("__syncthreads();", ""), BUFFERS)
    # A result that a kernel also reads, or whose address it takes, may come from another kernel.
    for line in ("y_ptr[0] = y_ptr[0] + 1.0f;", "float y = y_ptr[0];", "copy((&(y_ptr[0])));"):
        assert "float* y_ptr" in waiting(SIGNATURE + f"\n  __syncthreads();\n  {line}\n}}", BUFFERS)


UNPACKING = """
extern "C" __global__ void __launch_bounds__(1) q2(uint* words, uint* f16, uint* bf16) {
  unpack_q2_f16(f16, words[0]);
  unpack_q2_bf16(bf16, words[0]);
}

extern "C" __global__ void __launch_bounds__(1) q4(uint* words, uint* f16, uint* bf16) {
  unpack_q4_f16(f16, words[0]);
  scale_pairs_f16(f16, scale_f16(words[2], 1));
  unpack_q4_bf16(bf16, words[0]);
  scale_pairs_bf16(bf16, scale_bf16(words[2], 1));
}

extern "C" __global__ void __launch_bounds__(1) raised_q4(uint* words, uint* f16, uint* bf16) {
  unpack_raised_q4_f16(f16, words[0], 0x000f000fu, 0x00f000f0u);
  for (int i = 0; i < 2; i++) {
    bf16[i] = pair_bf16(low_half(f16[i]), high_half(f16[i]));
    bf16[2 + i] = pair_bf16(low_half(f16[2 + i]), high_half(f16[2 + i]));
  }
}

extern "C" __global__ void __launch_bounds__(1) signed_q8(uint* words, uint* f16, uint* bf16) {
  unpack_signed_f16(f16, words[0], words[1]);
  for (int i = 0; i < 4; i++) bf16[i] = pair_bf16(low_half(f16[i]), high_half(f16[i]));
}

extern "C" __global__ void __launch_bounds__(1) e4m3(uint* words, uint* f16, uint* bf16) {
  unpack_e4m3_f16(f16, words[0], words[1]);
  for (int i = 0; i < 2; i++) {
    bf16[i * 2] = pair_bf16(unpack4xe4m3_x(words[i]), unpack4xe4m3_z(words[i]));
    bf16[i * 2 + 1] = pair_bf16(unpack4xe4m3_y(words[i]), unpack4xe4m3_w(words[i]));
  }
}

extern "C" __global__ void __launch_bounds__(1) pack_e4m3(float* numbers, uint* words) {
  words[0] = pack4xe4m3({numbers[0], numbers[1], numbers[2], numbers[3]});
}

extern "C" __global__ void __launch_bounds__(1) q8(uint* words, uint* f16, uint* bf16) {
  unpack_q8_f16(f16, words[0], words[1]);
  scale_pairs_f16(f16, scale_f16(words[2], 0));
  unpack_q8_bf16(bf16, words[0], words[1]);
  scale_pairs_bf16(bf16, scale_bf16(words[2], 0));
}
"""


def test_every_code_of_packed_weights_is_unpacked_exactly(emulated_cuda: Path) -> None:
    from nearfar.targets.cuda.source import source_file

    library = Library(source_file(()) + UNPACKING, emulated_cuda)
    # Two scales in one word: 3, which every format represents exactly, and 0.5.
    scales = np.array([3, 0.5], np.float16).view(np.uint32)[0]
    order = (0, 2, 1, 3, 4, 6, 5, 7)
    f16, bf16 = np.zeros(4, np.uint32), np.zeros(4, np.uint32)
    for start in range(0, 256, 8):
        codes = np.arange(start, start + 8)
        # Both fields of a byte's low nibble, and garbage in the high one, which belongs to the word's other octet.
        fields = np.random.default_rng(start).integers(0, 4, 8)
        shared = (fields[:4] | fields[4:] << 2 | np.arange(start, start + 4) % 16 << 4).astype(np.uint8)
        nibbles = codes % 16
        low, high = nibbles[:4], nibbles[4:]
        for entry, words, expected in (
            ("q2", [*shared.view(np.uint32).tolist(), 0], fields - 2.0),
            ("q4", [*(low | high << 4).astype(np.uint8).view(np.uint32).tolist(), 0], (nibbles - 8) * 0.5),
            (
                "raised_q4",
                [*(low | high << 4).astype(np.uint8).view(np.uint32).tolist(), 0],
                nibbles - 8.0 + np.repeat([0, 72], 4),
            ),
            (
                "signed_q8",
                (codes - 128).astype(np.int8).view(np.uint32).tolist(),
                codes - 128.0,
            ),
            ("q8", codes.astype(np.uint8).view(np.uint32).tolist(), (codes - 128) * 3.0),
        ):
            given = np.array([*words, scales], np.uint32)
            library.launch(entry, (1, 1), 1, [array.ctypes.data for array in (given, f16, bf16)])
            np.testing.assert_array_equal(f16.view(np.float16), expected[list(order)])
            wide = (bf16.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            # 8 bits of the significand are kept.
            np.testing.assert_allclose(wide, expected[list(order)], rtol=2**-8)


# GPUs before sm_89 compute what later ones have an instruction for.
OLDER_GPU = "#undef HAS_E4M3\n#define pair_e4m3 computed_pair_e4m3\n"


@pytest.mark.parametrize("older", [False, True])
def test_floats_of_8_bits_are_those_of_the_reference_on_every_gpu(older: bool, emulated_cuda: Path) -> None:
    from nearfar.targets.cuda.source import source_file

    library = Library((OLDER_GPU if older else "") + source_file(()) + UNPACKING, emulated_cuda)
    # 127 and 255 are no numbers, and pages never hold them.
    codes = np.arange(256, dtype=np.uint8).reshape(-1, 8)
    codes[codes % 128 == 127] = 0
    f16, bf16, word = np.zeros(4, np.uint32), np.zeros(4, np.uint32), np.zeros(1, np.uint32)
    for eight in codes:
        given = eight.view(np.uint32)
        library.launch("e4m3", (1, 1), 1, [array.ctypes.data for array in (given, f16, bf16)])
        expected = e4m3.VALUES[eight][[0, 2, 1, 3, 4, 6, 5, 7]]
        np.testing.assert_array_equal(f16.view(np.float16), expected)
        # bfloat16 has 8 bits of significand, and more exponents.
        wide = (bf16.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(wide, expected)
    sorted_values = np.sort(e4m3.VALUES[np.isfinite(e4m3.VALUES)])
    middles = (sorted_values[1:] + sorted_values[:-1]) / 2
    others = np.random.default_rng(0).normal(0, 1, 64).astype(np.float32) * np.float32(0.02)
    numbers = np.concatenate([sorted_values, middles, others, others * 1000, [500, -1e9]]).astype(np.float32)
    for four in numbers[: len(numbers) // 4 * 4].reshape(-1, 4):
        library.launch("pack_e4m3", (1, 1), 1, [array.ctypes.data for array in (four, word)])
        np.testing.assert_array_equal(word.view(np.uint8), e4m3.encode(four))
