"""How far two computations of the same thing may be apart: one number for each dtype of activations, relative to the largest magnitude.

F32 covers the order of sums and the builtins of shading languages (exp, inverse square root), which may be a few units off.

F16 is for whole models whose activations and KV are stored as float16. Two sums that differ in their last f32 bit may round to neighbours,
2^-10 of the value apart, and layers carry that on. Measured on the tiny checkpoints: 3.3e-4 at most between lavapipe and a reference that
rounds in the same places, 1.6e-3 at most between float16 and float32 activations. The bound leaves a factor of three on the latter.

INT16 is for one CPU kernel whose activations become integers of 16 bits, with a scale for every 128: half a step of 32,512 of the largest
of these. Measured on random rows of 64 to 4,864 columns: 4e-5 of the largest result at most, 1.1e-4 where every 97th column is 20 times as
large. INT16_MODEL is for whole models of such kernels against the reference: 9e-5 at most on the demo model.

INT8 and INT8_MODEL are the same for integers of 8 bits, with a scale for every 32 activations: 6e-3 of the largest result at most on
random rows, 1.5e-2 where every 97th column is 20 times as large; 1.3e-2 of whole models on the demo model, 2.3e-2 on a tiny checkpoint.

F16_ROUNDING is for one kernel whose result is stored as float16: one such step to a neighbour, of the largest value. BF16_ROUNDING
is the same for bfloat16.

Q8_ROUNDING is for what is stored as 8-bit integers: one such step, of the largest value. It may happen to few words of four, Q8_ROUNDED of
all at most; what is computed from them then differs by Q8_KERNEL at most.

KV_Q8 is for whole models with 8-bit keys and values against the same models without: 1.9e-2 at most on the tiny checkpoints, whose weights
are random. Two computations with them differ by 6.5e-4 at most, but where prefill holds weights in float16 as well: then more keys and
values come to a neighbour of their code, and KV_Q8_F16 is for that, 5.8e-3 at most.

Those of ONNX are relative root mean squares, but that ONNX_F32 bounds differences to `ir/ops/` and transformers by the largest logit too.
It is for whole models: 7e-7 at most on the tiny checkpoints, 1e-6 of the largest. ONNX_INT8_KERNEL is for one product whose inputs become
8-bit integers, a scale a block: 9e-3 at most on random rows. ONNX_INT8_MODEL is for whole models of such products: 2.6e-2 at most on the
tiny checkpoints, 1.5e-2 on the demo model.
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
F16_ROUNDING = 2.0**-10
BF16_ROUNDING = 2.0**-7
Q8_ROUNDING = 1.001 / 127
Q8_ROUNDED = 1e-3
Q8_KERNEL = 2e-3
KV_Q8 = 4e-2
KV_Q8_F16 = 1.5e-2
ONNX_F32 = 1e-5
ONNX_INT8_KERNEL = 2e-2
ONNX_INT8_MODEL = 4e-2

OF_ACTIVATION = {"float32": F32, "float16": F16}
OF_KERNEL = {"float32": F32, "float16": F16_ROUNDING, "bfloat16": BF16_ROUNDING, "int16": INT16, "int8": INT8}


def relative_error(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    """The largest difference over the largest magnitude expected; infinite where either is not finite."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not expected.size:
        return 0.0
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))
