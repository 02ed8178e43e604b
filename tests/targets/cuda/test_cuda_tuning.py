"""The rules that choose the sizes of CUDA's projection kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from case_arrays import ALL_FORMATS
from case_selection import usual_or_exhaustive

from nearfar.compiler.kernels.cuda import linear_few, linear_wgmma
from nearfar.compiler.kernels.cuda.linear_mma import shared_bytes, supports
from nearfar.compiler.kernels.cuda.linear_wgmma import WgmmaShape
from nearfar.compiler.kernels.cuda.rows16 import blocks_of
from nearfar.compiler.kernels.projection import Projection
from nearfar.targets.cuda.arch import max_dynamic_bytes
from nearfar.targets.cuda.source import MAX_SHARED_BYTES
from nearfar.targets.cuda.tuning import (
    FEW_ROW_COUNTS,
    TUNINGS,
    column_blocks,
    few_shapes,
    mma_shapes,
    tensor_core_shapes,
    tuning_for,
    vector_shape,
)

GATES = [{"op": "gate_halves"}]
SIZES = ((1, 1), (96, 40), (2048, 256), (3072, 1024), (4096, 14336), (14336, 4096), (1024, 151936))


def test_an_architecture_without_numbers_uses_those_of_the_next_older_one() -> None:
    assert tuning_for("sm_90a") is TUNINGS["sm_90"]
    assert tuning_for("sm_86") is TUNINGS["sm_80"]
    assert tuning_for("sm_120") is TUNINGS["sm_100"]


@pytest.mark.parametrize("arch", TUNINGS)
@pytest.mark.parametrize("gated", [False, True])
def test_every_matrix_gets_kernels_that_fit_for_any_number_of_rows(arch: str, gated: bool) -> None:
    tuning = TUNINGS[arch]
    for fmt in ALL_FORMATS.values():
        for columns, outputs in SIZES:
            facts = Projection("S", columns, outputs, fmt, "float16", "float16", store=GATES if gated else [])
            for x_rows in (1, 2):
                vector = vector_shape(facts, tuning, x_rows)
                assert vector.x_rows == x_rows
                assert vector.stages >= 2
            if not supports(facts):
                continue
            shapes = mma_shapes(facts, tuning, "float16")
            limits = [limit for _, limit in shapes[:-1]]
            assert limits == sorted(set(limits), key=lambda limit: limit or 0)
            assert shapes[-1][1] is None
            assert shapes[-1][0].splits == 1
            for shape, limit in shapes:
                assert shared_bytes(fmt, shape, gated=gated) < MAX_SHARED_BYTES
                if shape.splits > 1:
                    assert limit is not None
                    assert limit <= shape.max_batch
                    assert -(-blocks_of(columns) // shape.splits) * (shape.splits - 1) < blocks_of(columns)


# The others have other numbers of multiprocessors alone.
@pytest.mark.parametrize("arch", usual_or_exhaustive(TUNINGS, ("sm_80", "sm_90")))
@pytest.mark.parametrize("gated", [False, True])
def test_matrices_of_few_rows_get_shapes_that_fit(arch: str, gated: bool) -> None:
    tuning = TUNINGS[arch]
    for fmt in ALL_FORMATS.values():
        for columns, outputs in (*SIZES, (53248, 16384)):
            facts = Projection("S", columns, outputs, fmt, "float16", "float16", store=GATES if gated else [])
            for x_rows in FEW_ROW_COUNTS:
                shapes = few_shapes(facts, tuning, x_rows)
                assert linear_few.supports(facts) or not shapes
                # Two rounds of weights of 8 and 16 bits are too large for some GPUs.
                small = columns <= 4096 and fmt.low_bits in (2, 4) and x_rows <= 2
                assert shapes or not linear_few.supports(facts) or not small
                for shape in shapes:
                    assert shape.x_rows == x_rows
                    assert linear_few.shared_bytes(facts, shape) <= tuning.few_bytes
                    assert shape.stages >= min(2, shape.rounds(columns))
                    # No workgroup is without columns.
                    assert shape.rounds(columns) * shape.warps * (shape.splits - 1) < blocks_of(columns)


def test_one_row_of_a_narrow_matrix_with_many_columns_is_split() -> None:
    tuning = TUNINGS["sm_90"]
    narrow = Projection("S", 14336, 1024, ALL_FORMATS["q4f16"], "float16", "float32", store=[{"op": "add"}])
    assert few_shapes(narrow, tuning, 1)[0].splits > 1
    # Each workgroup would need the sum of squares of the whole row.
    norm = {"op": "rms_norm", "eps": 1e-6, "centered": False, "row": None, "bias": False, "keep": False}
    assert few_shapes(replace(narrow, load=[norm]), tuning, 1)[0].splits == 1


def test_narrow_matrices_occupy_nearly_every_multiprocessor() -> None:
    tuning = TUNINGS["sm_90"]
    # The projections into the hidden size of Qwen3-0.6B.
    for columns in (2048, 3072):
        facts = Projection("S", columns, 1024, ALL_FORMATS["q4f16"], "float16", "float32", store=[{"op": "add"}])
        assert 1024 // vector_shape(facts, tuning, 1).outputs >= 0.9 * tuning.multiprocessors
        for shape, limit in mma_shapes(facts, tuning, "float16"):
            rows = limit if limit is not None else 2048
            workgroups = column_blocks(facts, shape) * -(-rows // shape.rows) * shape.splits
            assert workgroups >= 0.9 * tuning.multiprocessors, (columns, limit)


@pytest.mark.parametrize("gated", [False, True])
def test_only_hopper_multiplies_many_rows_by_wgmma_in_shapes_that_fit(gated: bool) -> None:
    for fmt in ALL_FORMATS.values():
        for columns, outputs in SIZES:
            facts = Projection("S", columns, outputs, fmt, "float16", "float16", store=GATES if gated else [])
            if not supports(facts):
                continue
            assert tensor_core_shapes(facts, TUNINGS["sm_100"], "float16") == mma_shapes(
                facts, TUNINGS["sm_100"], "float16"
            )
            shapes = tensor_core_shapes(facts, TUNINGS["sm_90"], "float16")
            limits = [limit for _, limit in shapes[:-1]]
            assert limits == sorted(set(limits), key=lambda limit: limit or 0)
            assert shapes[-1][1] is None
            assert shapes[-1][0].splits == 1
            for shape, limit in shapes:
                assert shape.splits == 1 or (limit is not None and limit <= shape.max_batch)
                if isinstance(shape, WgmmaShape):
                    assert limit is None or limit >= 64
                    added = linear_wgmma.shared_bytes(fmt, shape, gated=gated)
                    # What a kernel declares is not aligned for tiles.
                    assert MAX_SHARED_BYTES < added < max_dynamic_bytes("sm_90")
    facts = Projection("S", 4096, 14336, ALL_FORMATS["q4f16"], "float16", "float16", store=GATES if gated else [])
    kinds = [type(shape) for shape, limit in tensor_core_shapes(facts, TUNINGS["sm_90"], "float16")]
    assert kinds[-2:] == [WgmmaShape, WgmmaShape]
