"""The PTX of `device.cuh` as the GPU's own instructions: NVRTC compiles a small kernel for each function, nvdisasm
prints its SASS, and the tests compare opcodes, and follow registers from loads through the instruction to stores. The
emulator does not see PTX, so only these tests would notice a wrong opcode or exchanged operands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

import pytest
from sass import Instruction, disassembler, functions_of

from nearfar.compiler.kernels.cuda.linear_few import linear_few
from nearfar.compiler.kernels.cuda.linear_wgmma import WgmmaShape, linear_wgmma
from nearfar.compiler.kernels.cuda.sources import device_source, functions_source, source
from nearfar.compiler.kernels.projection import Projection
from nearfar.compiler.quant.kernel_format import WeightFormat
from nearfar.targets.cuda.nvrtc import compile_cubin
from nearfar.targets.cuda.source import cuda, source_file
from nearfar.targets.cuda.tuning import few_shapes, tuning_for

pytestmark = pytest.mark.usefixtures("nvrtc")

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
# Each kernel loads its operands one by one, as words of `in`, and stores results as words of `out`. `volatile` keeps
# the compiler from merging loads.
BODIES = {
    "half": "const uint word = in[0]; out[0] = half(__uint_as_float(word)).bits;",
    "float_of_half": "half value; value.bits = in[0]; out[0] = __float_as_uint((float)value);",
    "nv_bfloat16": "const uint word = in[0]; out[0] = nv_bfloat16(__uint_as_float(word)).bits;",
    "pair_f16": "const uint a = in[0], b = in[1]; out[0] = pair_f16(__uint_as_float(a), __uint_as_float(b));",
    "pair_bf16": "const uint a = in[0], b = in[1]; out[0] = pair_bf16(__uint_as_float(a), __uint_as_float(b));",
    "multiply_add_f16": "const uint a = in[0], b = in[1], c = in[2]; out[0] = multiply_add_f16(a, b, c);",
    "multiply_add_bf16": "const uint a = in[0], b = in[1], c = in[2]; out[0] = multiply_add_bf16(a, b, c);",
    "copy_16_bytes": """
      __shared__ __align__(16) uint tile[64];
      copy_16_bytes(tile + 4 * in[0], (const uint*)out + 4, in[1]);
      wait_for_copies();
      out[0] = tile[in[2]];""",
    "load_transposed": """
      __shared__ __align__(16) uint tile[64];
      tile[threadIdx.x] = in[0];
      __syncthreads();
      uint words[4];
      load_transposed(words, tile + 4 * in[1]);
      for (int i = 0; i < 4; i++) out[i] = words[i];""",
    # Copies of 8 and of 4 bytes, each in a group of its own; the second may still run when the first is read.
    "copy_8_bytes": """
      __shared__ __align__(16) uint tile[64];
      copy_8_bytes(tile + 2 * in[0], (const uint*)out + 4);
      commit_copies();
      copy_4_bytes(tile + 8 + in[1], (const uint*)out + 6);
      commit_copies();
      wait_for_copies_before<1>();
      out[0] = tile[in[2]];""",
    "fast_exp2": "out[0] = __float_as_uint(fast_exp2(__uint_as_float(in[0])));",
    "fast_reciprocal": "out[0] = __float_as_uint(fast_reciprocal(__uint_as_float(in[0])));",
    "arrive": "out[1] = in[0]; out[0] = arrive((uint*)out + 8);",
    "release_add": "out[1] = in[0]; release_add((uint*)out + 8);",
    "load_acquire": "out[0] = load_acquire((const uint*)out + 8); out[1] = in[0];",
    "load_relaxed": "out[0] = load_relaxed((const uint*)out + 8); out[1] = in[0];",
    "store_relaxed": "store_relaxed((uint*)out + 8, in[0]);",
    "sync_team": "const uint number = in[0], threads = in[1]; sync_team(number, threads); out[0] = in[2];",
    "any_of": "const uint number = in[0], threads = in[1]; out[0] = any_of(number, threads, in[2] == 5);",
    "wait_for_previous_kernel": "wait_for_previous_kernel(); out[0] = in[0]; allow_next_kernel();",
    **{
        name: f"""
      uint a[4], b[2];
      float sums[4];
      for (int i = 0; i < 4; i++) a[i] = in[i];
      for (int i = 0; i < 2; i++) b[i] = in[4 + i];
      for (int i = 0; i < 4; i++) sums[i] = __uint_as_float(in[6 + i]);
      {name}(sums, a, b);
      for (int i = 0; i < 4; i++) out[i] = __float_as_uint(sums[i]);"""
        for name in ("mma_f16", "mma_bf16")
    },
}
# The kernels of functions that only Hopper GPUs have. The unit of a product's tile is read from `in`.
HOPPER_BODIES = {
    **{
        f"wgmma_{rows}_{dtype}": f"""
      uint upper[2], lower[2];
      float sums[{rows // 2}];
      for (int i = 0; i < 2; i++) upper[i] = in[i];
      for (int i = 0; i < 2; i++) lower[i] = in[2 + i];
      for (int i = 0; i < {rows // 2}; i++) sums[i] = __uint_as_float(in[4 + i]);
      compute_now<2>(upper);
      start_products();
      wgmma_{rows}_{dtype}(sums, upper, lower, dynamic_shared + 64);
      commit_products();
      wait_for_products_before<0>();
      use_sums<{rows // 2}>(sums);
      for (int i = 0; i < {rows // 2}; i++) out[i] = __float_as_uint(sums[i]);"""
        for rows in (64, 128)
        for dtype in ("f16", "bf16")
    },
    "copy_tile": """
      __shared__ __align__(16) uint tile[64], barrier[2];
      if (threadIdx.x == 0) {
        create_barrier(barrier, 1);
        publish_barriers();
        expect_bytes(barrier, 64);
        copy_tile(tile, (const uint*)out + 4, 64, barrier);
      }
      __syncthreads();
      wait_for_phase(barrier, 0);
      out[0] = tile[in[0]];
      arrive_at(barrier);""",
}
# Those of GPUs from sm_89 on.
E4M3_BODIES = {
    "pair_e4m3": "const uint a = in[0], b = in[1]; out[0] = pair_e4m3(__uint_as_float(a), __uint_as_float(b));",
    "halves_of_e4m3": "const uint word = in[0]; out[0] = halves_of_e4m3((unsigned short)word);",
    "unpack_e4m3_f16": "uint p[4]; unpack_e4m3_f16(p, in[0], in[1]); for (int i = 0; i < 4; i++) out[i] = p[i];",
}
# These functions occur in the kernels of other functions.
CHECKED = {
    *BODIES,
    *HOPPER_BODIES,
    *E4M3_BODIES,
    *("compute_now", "start_products", "commit_products", "wait_for_products_before", "use_sums", "tile_descriptor"),
    *("create_barrier", "publish_barriers", "expect_bytes", "wait_for_phase", "arrive_at"),
    *("wait_for_copies", "copy_4_bytes", "commit_copies", "wait_for_copies_before", "allow_next_kernel"),
}


@cache
def disassembled(arch: str) -> Mapping[str, Sequence[Instruction]]:
    """The instructions of the kernel of each function."""
    head = 'extern "C" __global__ void'
    newer = {} if arch == "sm_80" else E4M3_BODIES
    bodies = {**BODIES, **newer, **(HOPPER_BODIES if arch == "sm_90" else {})}
    kernels = [
        f"{head} run_{name}(const volatile uint* in, volatile uint* out) {{{body}}}" for name, body in bodies.items()
    ]
    sources = [device_source(), functions_source(), source("persistent.cuh"), *kernels]
    return instructions_of(compile_cubin("\n".join(sources), arch, "sass.cu")[0], "run_")


def instructions_of(cubin: bytes, prefix: str) -> dict[str, Sequence[Instruction]]:
    """The instructions of each kernel by its name without the prefix."""
    if disassembler() is None:
        from conftest import lacks

        lacks("nvdisasm is not installed; pip install nvidia-cuda-nvdisasm")
    return {name: each.instructions for name, each in functions_of(cubin, prefix).items()}


class Kernel:
    """One kernel: its instructions that are always executed, and all of them; the words of `in` by the registers that
    they are loaded to, and the registers that are stored to the words of `out`.
    """

    def __init__(self, name: str, arch: str) -> None:
        self.all_instructions = disassembled(arch)[name]
        self.instructions = [each for each in self.all_instructions if not each.guard]
        loads, stores = ([each for each in self.instructions if each.opcode.startswith(op)] for op in ("LDG.", "STG."))
        self.loaded = {load.register(0): word_of(load.operands[1]) for load in loads}
        self.stored = {word_of(store.operands[0]): store.register(1) for store in stores}

    def only(self, pattern: str) -> Instruction:
        """The only instruction whose opcode matches."""
        found = [each for each in self.instructions if re.fullmatch(pattern, each.opcode)]
        assert len(found) == 1, (pattern, self.instructions)
        return found[0]

    def words(self, first: int, count: int) -> list[int]:
        """The words of `in` in consecutive registers."""
        return [self.loaded[first + i] for i in range(count)]


def word_of(address: str) -> int:
    """The word of an address such as "desc[UR4][R2.64+0x8]"."""
    offset = re.search(r"\+0x([0-9a-f]+)\]$", address)
    return int(offset[1], 16) // 4 if offset else 0


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("name", "opcode"), [("mma_f16", "HMMA.16816.F32"), ("mma_bf16", "HMMA.16816.F32.BF16")])
def test_tiles_are_multiplied_by_one_instruction_with_float32_sums(name: str, opcode: str, arch: str) -> None:
    kernel = Kernel(name, arch)
    multiply = kernel.only(r"[A-Z]*MMA\..*")
    assert multiply.opcode == opcode
    result, a, b, c = (multiply.register(i) for i in range(4))
    assert kernel.words(a, 4) == [0, 1, 2, 3]
    assert kernel.words(b, 2) == [4, 5]
    assert kernel.words(c, 4) == [6, 7, 8, 9]
    assert kernel.stored == {i: result + i for i in range(4)}


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize(("dtype", "suffix"), [("f16", ""), ("bf16", ".BF16")])
def test_four_warps_multiply_by_one_instruction_with_float32_sums(rows: int, dtype: str, suffix: str) -> None:
    kernel = Kernel(f"wgmma_{rows}_{dtype}", "sm_90")
    multiply = kernel.only(r"HGMMA.*")
    assert multiply.opcode == f"HGMMA.64x{rows}x16.F32{suffix}"
    result, a, c = (multiply.register(i) for i in (0, 1, 3))
    # The upper and the lower row's first pairs, and then their second ones.
    assert kernel.words(a, 4) == [0, 2, 1, 3]
    assert kernel.words(c, rows // 2) == list(range(4, 4 + rows // 2))
    assert kernel.stored == {i: result + i for i in range(rows // 2)}
    order = [each.opcode for each in kernel.instructions]
    steps = [order.index(opcode) for opcode in ("WARPGROUP.ARRIVE", multiply.opcode, "WARPGROUP.DEPBAR.LE")]
    assert steps == sorted(steps)
    assert kernel.only(r"WARPGROUP\.DEPBAR.*").operands == ["gsb0", "0x0"]
    # The descriptor's high word: 128-byte swizzle, and 1,024 bytes between groups of eight rows. Its low word is the
    # address in units of 16 bytes.
    found = re.fullmatch(r"gdesc\[UR(\d+)\]", multiply.operands[2])
    assert found is not None
    low, high = (f"UR{int(found[1]) + word}" for word in (2, 3))
    assert Instruction("UMOV", [high, "0x40000040"]) in kernel.instructions
    moved = next(each for each in kernel.instructions if each.opcode == "UMOV" and each.operands[0] == low)
    writes = [each for each in kernel.instructions if each.operands[0] == moved.operands[1]]
    shift, tag = (each.operands for each in writes[-2:])
    assert (shift[2], tag[2]) == ("0x4", "0x10000")


def test_a_tile_is_copied_by_one_thread_and_waited_for() -> None:
    kernel = Kernel("copy_tile", "sm_90")
    order = [each.opcode for each in kernel.all_instructions]
    opcodes = ("SYNCS.EXCH.64", "SYNCS.ARRIVE.TRANS64", "UBLKCP.S.G", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "LDS")
    steps = [next(i for i, each in enumerate(order) if each.startswith(opcode)) for opcode in opcodes]
    assert steps == sorted(steps)


def test_products_overlap_with_the_conversion_of_the_next_weights() -> None:
    facts = Projection("S", 1024, 256, WeightFormat("q4", "float16"), "float16", "float32", store=[{"op": "add"}])
    lowered = cuda(linear_wgmma("projection", facts, WgmmaShape(128, 2, 2, "float16", 4)), "sm_90")
    cubin, log = compile_cubin(source_file([lowered]), "sm_90", "overlap.cu")
    assert "serialized" not in log
    assert "0 bytes spill stores" in log
    (instructions,) = instructions_of(cubin, lowered.entry[:-7]).values()
    order = [each.opcode for each in instructions]
    assert order.count("HGMMA.64x128x16.F32") == 2 * 8
    waits = [each.operands for each in instructions if each.opcode.startswith("WARPGROUP.DEPBAR")]
    assert waits.count(["gsb0", "0x1"]) == 3
    assert waits.count(["gsb0", "0x0"]) == 1


def test_a_round_of_one_row_needs_few_instructions_for_each_weight() -> None:
    # Llama-3.1-8B's o, whose weights are all in flight at once.
    facts = Projection("S", 4096, 4096, WeightFormat("q4", "float16"), "float16", "float32", store=[{"op": "add"}])
    shape = few_shapes(facts, tuning_for("sm_90"), 1)[0]
    lowered = cuda(linear_few("projection", facts, shape), "sm_90a")
    cubin, log = compile_cubin(source_file([lowered]), "sm_90", "few.cu")
    assert "0 bytes spill stores" in log
    assert disassembler() is not None
    (function,) = functions_of(cubin).values()
    loop = function.loops[0]
    inside = [each.opcode for each in function.instructions[loop.first : loop.last + 1]]
    # A tile has 8 products, and another 4 make the correction of all tiles.
    assert inside.count("HMMA.16816.F32") == 8 * shape.tiles + 4
    weights = shape.tiles * 16 * 128 / 32
    assert loop.length / weights < 1.45
    # Two thirds of an instruction that logic and shifts do at half the rate.
    assert sum(each.startswith(("LOP3", "SHF", "PRMT")) for each in inside) / weights < 0.67


@pytest.mark.parametrize("arch", ARCHS[1:])
def test_floats_of_8_bits_are_converted_by_instructions_of_two(arch: str) -> None:
    packs, unpacks = Kernel("pair_e4m3", arch), Kernel("halves_of_e4m3", arch)
    pack = packs.only(r"F2FP.*")
    assert pack.opcode.startswith("F2FP.SATFINITE.E4M3.F32")
    # The first operand is the high byte.
    assert [packs.loaded[pack.register(i)] for i in (1, 2)] == [1, 0]
    assert unpacks.only(r"F2FP.*").opcode.startswith("F2FP.F16.E4M3")
    eight = [each.opcode for each in Kernel("unpack_e4m3_f16", arch).instructions]
    assert sum(each.startswith("F2FP.F16.E4M3") for each in eight) == 4
    assert sum(each.startswith(("PRMT", "SHF", "LOP3", "HFMA2")) for each in eight) <= 4


@pytest.mark.parametrize("arch", ARCHS)
def test_matrices_are_loaded_transposed_in_order(arch: str) -> None:
    kernel = Kernel("load_transposed", arch)
    load = kernel.only(r"LDSM.*")
    assert load.opcode == "LDSM.16.MT88.4"
    assert kernel.stored == {i: load.register(0) + i for i in range(4)}


@pytest.mark.parametrize("arch", ARCHS)
def test_copies_bypass_the_first_cache_fill_zeros_and_are_waited_for(arch: str) -> None:
    kernel = Kernel("copy_16_bytes", arch)
    copy = kernel.only(r"LDGSTS.*")
    assert copy.opcode == "LDGSTS.E.BYPASS.128"
    # The predicate is an operand, not a guard: a guarded copy would not write zeros.
    (predicate,) = (operand for operand in copy.operands if re.fullmatch(r"P\d", operand))
    test = next(each for each in kernel.instructions if each.operands[0] == predicate)
    assert test.opcode.startswith("ISETP.NE")
    assert kernel.loaded[test.register(2)] == 1
    order = [each.opcode for each in kernel.instructions]
    assert kernel.only(r"DEPBAR.*") == Instruction("DEPBAR.LE", ["SB0", "0x0"])
    steps = [order.index(opcode) for opcode in (copy.opcode, "LDGDEPBAR", "DEPBAR.LE", "LDS")]
    assert steps == sorted(steps)


@pytest.mark.parametrize("arch", ARCHS)
def test_small_copies_form_groups_and_the_last_ones_are_not_waited_for(arch: str) -> None:
    kernel = Kernel("copy_8_bytes", arch)
    opcodes = ("LDGSTS.E.64", "LDGDEPBAR", "LDGSTS.E", "DEPBAR.LE", "LDS")
    order = [each.opcode for each in kernel.instructions if each.opcode in opcodes]
    assert order == ["LDGSTS.E.64", "LDGDEPBAR", "LDGSTS.E", "LDGDEPBAR", "DEPBAR.LE", "LDS"]
    assert kernel.only(r"DEPBAR.*").operands == ["SB0", "0x1"]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("name", "opcode"), [("fast_exp2", "MUFU.EX2"), ("fast_reciprocal", "MUFU.RCP")])
def test_fast_functions_are_one_instruction(name: str, opcode: str, arch: str) -> None:
    kernel = Kernel(name, arch)
    found = kernel.only(r"MUFU.*")
    assert found.opcode == opcode
    assert kernel.loaded[found.register(1)] == 0
    assert kernel.stored == {0: found.register(0)}
    assert not any(each.opcode.startswith(("FMUL", "FSETP", "FADD")) for each in kernel.all_instructions)


@pytest.mark.parametrize("arch", ARCHS)
def test_who_arrives_has_released_its_writes_and_sees_those_of_others(arch: str) -> None:
    opcodes = [each.opcode for each in Kernel("arrive", arch).all_instructions]
    kinds = [re.match(r"STG|MEMBAR|ATOMG?\.E\.ADD\.STRONG\.GPU|CCTL\.IVALL", opcode) for opcode in opcodes]
    order = [kind[0] for kind in kinds if kind is not None]
    assert order[0] == order[-1] == "STG"
    assert order.index("MEMBAR") < (add := next(i for i, kind in enumerate(order) if kind.startswith("ATOM")))
    assert "CCTL.IVALL" in order[add:]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_counter_is_released_and_acquired(arch: str) -> None:
    def order(name: str) -> list[str]:
        found = [each.opcode for each in Kernel(name, arch).all_instructions]
        kinds = (
            r"STG\.E\.STRONG\.GPU",
            r"STG",
            r"MEMBAR",
            r"REDG?\.E\.ADD\.STRONG\.GPU",
            r"LDG\.E\.STRONG\.GPU",
            r"CCTL\.IVALL",
        )
        return [kind.replace("\\", "").replace("G?", "") for each in found for kind in kinds if re.match(kind, each)]

    assert order("release_add")[-3:] == ["STG", "MEMBAR", "RED.E.ADD.STRONG.GPU"]
    # The first cache is emptied before the next load.
    loaded = order("load_acquire")
    assert loaded[:2] == ["LDG.E.STRONG.GPU", "CCTL.IVALL"]
    opcodes = [each.opcode.split(".")[0] for each in Kernel("load_acquire", arch).all_instructions]
    assert opcodes.index("CCTL") < len(opcodes) - 1 - opcodes[::-1].index("LDG")
    assert "CCTL.IVALL" not in order("load_relaxed")
    assert order("load_relaxed")[0] == "LDG.E.STRONG.GPU"
    assert order("store_relaxed")[0] == "STG.E.STRONG.GPU"


@pytest.mark.parametrize("arch", ARCHS)
def test_teams_have_barriers_of_their_own(arch: str) -> None:
    for name, opcode in (("sync_team", r"BAR\.SYNC.*"), ("any_of", r"BAR\.RED\.OR.*")):
        barrier = Kernel(name, arch).only(opcode)
        # The number and the threads are not constants here, so they are in registers.
        assert all(re.match(r"U?R\d+", operand) for operand in barrier.operands[:2]), barrier


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_waits_before_its_reads_and_lets_the_next_one_start_after_its_writes(arch: str) -> None:
    found = [each.opcode.split(".")[0] for each in Kernel("wait_for_previous_kernel", arch).instructions]
    order = [opcode for opcode in found if opcode in ("ACQBULK", "LDG", "STG", "PREEXIT")]
    assert order == (["LDG", "STG"] if arch == "sm_80" else ["ACQBULK", "LDG", "STG", "PREEXIT"])


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("name", "opcode", "operands"),
    [
        ("pair_f16", r"F2FP(\.F16\.F32)?\.PACK_AB", [1, 0]),
        ("pair_bf16", r"F2FP\.BF16(\.F32)?\.PACK_AB", [1, 0]),
        ("multiply_add_f16", r"HFMA2(\.MMA)?", [0, 1, 2]),
        ("multiply_add_bf16", r"HFMA2(\.MMA)?\.BF16_V2", [0, 1, 2]),
    ],
)
def test_pairs_are_computed_by_one_instruction(name: str, opcode: str, operands: list[int], arch: str) -> None:
    kernel = Kernel(name, arch)
    found = kernel.only(opcode)
    assert [kernel.loaded[found.register(1 + i)] for i in range(len(operands))] == operands
    assert kernel.stored == {0: found.register(0)}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("half", r"F2F\.F16\.F32|F2FP(\.F16\.F32)?\.PACK_AB"),
        ("float_of_half", r"HADD2\.F32"),
        ("nv_bfloat16", r"F2F\.BF16\.F32|F2FP\.BF16(\.F32)?\.PACK_AB"),
    ],
)
def test_conversions_round_to_nearest_even(name: str, opcode: str, arch: str) -> None:
    """The opcode's default rounding, which other roundings would name (.RZ, .RM, .RP)."""
    kernel = Kernel(name, arch)
    assert kernel.stored == {0: kernel.only(opcode).register(0)}


def test_every_function_with_ptx_is_checked() -> None:
    text = device_source() + source("persistent.cuh")
    parts = re.split(r"^(?:  )?__device__ __forceinline__ ", text, flags=re.MULTILINE)[1:]
    names = [re.match(r".*?(operator \w+|\w+)\(", part) for part in parts if "asm" in part]
    found = {"float_of_half" if name[1] == "operator float" else name[1] for name in names if name is not None}
    assert len(found) >= 10
    assert found <= CHECKED, "add a kernel to BODIES and a test of its instructions"
