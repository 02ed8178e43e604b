"""Tolerances between two computations of the same values: one number per dtype of activations, relative to the largest
magnitude.

F32 covers the order of sums and the builtins of shading languages (exp, inverse square root), which may differ by a few
units in the last place.

F16 is for whole models whose activations and KV pages are float16. Two sums that differ in their last float32 bit may
be rounded to adjacent values, which differ by 2^-10 of the value, and later layers propagate the difference. Measured
on the tiny checkpoints: at most 3.3e-4 between lavapipe and a reference that rounds at the same points, and at most
1.6e-3 between float16 and float32 activations. The bound is three times the latter.

INT16 is for one CPU kernel whose activations are quantized to 16-bit integers with a scale for every 128: half a step
is 1/65,024 of the largest activation. Measured on random rows of 64 to 4,864 columns: at most 4e-5 of the largest
result, and at most 1.1e-4 if every 97th column is 20 times as large. INT16_MODEL is for whole models of such kernels
compared with the reference: at most 9e-5 on the demo model.

INT8 and INT8_MODEL are the same for 8-bit integers with a scale for every 32 activations. Measured: at most 6e-3 of the
largest result on random rows, and 1.5e-2 if every 97th column is 20 times as large; for whole models, at most 1.3e-2 on
the demo model and 2.3e-2 on a tiny checkpoint.

F16_PRODUCTS is for one kernel that multiplies in float16 and adds at most 32 such products before it continues in
float32. Measured on random weights of all formats that do: at most 1.7e-3 of the largest result in matrix-vector
kernels, and 2.7e-3 in tiles, whose float16 sums have four times as many terms. F16_PRODUCTS_MODEL is for whole models
of such kernels: at most 1.7e-3 on the demo models, and 1.8e-2 on a tiny checkpoint whose activations exceed float16's
range, and whose logits differ by 5.9e-3 between a prompt at once and token by token with products in float32.

F16_ROUNDING is for one kernel whose result is stored as float16: one step to an adjacent value, relative to the largest
value. BF16_ROUNDING is the same for bfloat16.

KV_ROUNDING is for keys and values that are stored as integers: one step, relative to the largest value. At most a share
of KV_ROUNDED of the words may differ, and the results of the same kernel then differ by at most KV_ROUNDING too. If all
words are equal, results differ by at most KV_KERNEL.

KV_Q8 is for whole models with 8-bit keys and values compared with the same models without: at most 1.9e-2 on the tiny
checkpoints, whose weights are random. Two computations with 8-bit keys and values differ by at most 6.5e-4, unless
prefill also holds weights in float16. Then more keys and values are rounded to an adjacent code, and KV_Q8_F16 is the
bound: at most 5.8e-3 was measured. KV_Q4 and KV_Q4_F32 are for 4 bits: at most 2.2e-1 on a tiny checkpoint, and at most
1.2e-2 between two computations with float32 activations, because a neighbouring code is an eighth of the largest value
away.

The tolerances of ONNX are relative root mean squares, except that ONNX_F32 also bounds differences from `ir/ops/` and
transformers relative to the largest logit. ONNX_F32 is for whole models: at most 7e-7 on the tiny checkpoints, 1e-6 of
the largest logit. ONNX_INT8_KERNEL is for one product whose inputs are quantized to 8-bit integers with a scale per
block: at most 9e-3 on random rows. ONNX_INT8_MODEL is for whole models of such products: at most 2.6e-2 on the tiny
checkpoints and 1.5e-2 on the demo model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

F32 = 1e-4
F16 = 5e-3
INT16 = 2e-4
INT16_MODEL = 5e-4
INT8 = 3e-2
INT8_MODEL = 6e-2
F16_PRODUCTS = 8e-3
F16_PRODUCTS_MODEL = 5e-2
F16_ROUNDING = 2.0**-10
BF16_ROUNDING = 2.0**-7
KV_ROUNDING = {"q8": 1.001 / 127, "q4": 1.001 / 8, "fp8": 1.001 / 14}
KV_ROUNDED = 1e-3
KV_KERNEL = {"q8": 2e-3, "q4": 2e-2, "fp8": 2e-3}
KV_Q8 = 4e-2
KV_Q4 = 0.5
KV_FP8 = 0.2
KV_Q4_F32 = 5e-2
KV_Q8_F16 = 1.5e-2
ONNX_F32 = 1e-5
ONNX_INT8_KERNEL = 2e-2
ONNX_INT8_MODEL = 4e-2

OF_ACTIVATION = {"float32": F32, "float16": F16}
OF_KERNEL = {
    "float32": F32, "float16": F16_ROUNDING, "float16 products": F16_PRODUCTS, "bfloat16": BF16_ROUNDING,
    "int16": INT16, "int8": INT8,
}  # fmt: skip


def relative_error(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """The largest difference divided by the largest expected magnitude; infinite if any value is not finite."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not expected.size:
        return 0.0
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))
