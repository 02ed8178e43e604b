"""row_moments and clip_norm on CPUs; `ir/ops/clips.py` defines them."""

from __future__ import annotations

from collections.abc import Callable

from ..builder import Kernel, Scalar, cast, maximum, minimum, number
from ..clip_norm import of_clip, squares_around
from ..vectors import floats, ramp, splat, sum_of_lanes
from .builder import CpuKernelBuilder, Isa, each_vector
from .math import square_root
from .rows import LANES


def row_moments(name: str, *, isa: Isa, columns: int, frame: int) -> Kernel:  # noqa: ARG001
    """x (S, columns), row_frames (S,) -> (S, 3). One task: one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("S", columns // frame, frame), "float32")
    counts = kernel.buffer("row_frames", ("S",), "int32")
    y = kernel.buffer("y", ("S", 3), "float32", write=True)
    with kernel.tasks("row", "S") as row:
        frames = kernel.let("frames", minimum(maximum(counts[row], 0), columns // frame))
        counted = kernel.let("counted", cast(frames * frame, "float32"))
        most = kernel.let("most", maximum(counted, number(1, "float32")))

        def summed(term: Callable[[Scalar, int], Scalar]) -> Scalar:
            """The sum of a term of each column that counts."""
            sums = kernel.local("sums", 1, floats(LANES), fill=0)
            rest = kernel.local("rest", 1, "float32", fill=0)
            with kernel.loop("frame", frames) as index:

                def add(start: Scalar, lanes: int) -> None:
                    each = term(kernel.let("each", x[row, index, ramp(start, lanes)]), lanes)
                    if lanes == LANES:
                        sums[0] = sums[0] + each
                    else:
                        rest[0] = rest[0] + sum_of_lanes(each)

                each_vector(kernel, frame, LANES, add)
            return sum_of_lanes(sums[0]) + rest[0]

        mean = kernel.let("mean", summed(lambda each, lanes: each) / most)  # noqa: ARG005
        squares = summed(lambda each, lanes: (each - splat(mean, lanes)) * (each - splat(mean, lanes)))
        for place, value in enumerate((counted, mean, squares)):
            y[row, place] = value
    return kernel.finish()


def clip_norm(name: str, *, isa: Isa, columns: int, frame: int, eps: float) -> Kernel:
    """x (S, columns), moments (S, 3), positions (S,), weight and bias (frame,) -> like x. One task: one row."""
    kernel = CpuKernelBuilder(name)
    x = kernel.buffer("x", ("S", columns // frame, frame), "float32")
    moments = kernel.buffer("moments", ("S", 3), "float32")
    positions = kernel.buffer("positions", ("S",), "int32")
    weight = kernel.buffer("weight", (frame,), "float32")
    bias = kernel.buffer("bias", (frame,), "float32")
    y = kernel.buffer("y", ("S", columns // frame, frame), "float32", write=True)
    with kernel.tasks("row", "S") as row:

        def summed(term: Callable[[Scalar], Scalar]) -> Scalar:
            """The sum of a term of each row of the clip."""
            total = kernel.local("total", 1, "float32", fill=0)
            with kernel.loop("other", kernel.size("S")) as other:
                total[0] = total[0] + of_clip(positions, other, row, term(other))
            return total[0]

        counted = kernel.let("counted", maximum(summed(lambda other: moments[other, 0]), number(1, "float32")))
        mean = kernel.let("mean", summed(lambda other: moments[other, 0] * moments[other, 1]) / counted)
        squares = summed(lambda other: squares_around(moments, other, mean))
        factor = number(1, "float32") / square_root(squares / counted + number(eps, "float32"))
        factor = kernel.let("factor", factor)
        with kernel.loop("frame", columns // frame) as index:

            def store(start: Scalar, lanes: int) -> None:
                here = ramp(start, lanes)
                normed = (x[row, index, here] - splat(mean, lanes)) * splat(factor, lanes)
                y[row, index, here] = normed * weight[here] + bias[here]

            each_vector(kernel, frame, isa.lanes, store)
    return kernel.finish()
