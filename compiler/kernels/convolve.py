"""The op `convolve` of `ir/ops/convolutions.py`, on GPUs and, with ``isa``, on CPUs."""

from __future__ import annotations

from .builder import Kernel, Scalar, all_of, maximum, minimum, truncated_quotient
from .cpu.builder import CpuKernelBuilder, Isa, each_vector
from .elementwise import builder
from .vectors import floats, ramp, splat

THREADS = 64


def convolve(
    name: str,
    *,
    channels: int,
    outputs: int,
    size: int,
    before: int,
    width: int,
    steps: int,
    places: int,
    stride: int,
    frames: int,
    depthwise: bool,
    bias: bool,
    isa: Isa | None = None,
) -> Kernel:
    """x (S, steps, places, channels) -> y (S, steps / stride, places / stride, outputs).

    One thread: one output of one place; neighbours read the same elements of x and adjacent weights. One workgroup: 64
    of them. On CPUs, one task: the outputs of one place, in vectors.
    """
    kernel = builder(name, isa)
    x = kernel.buffer("x", ("S", steps * places * channels), "float32")
    positions = kernel.buffer("positions", ("S",), "int32")
    weight = kernel.buffer("weight", (size * width * (1 if depthwise else channels) * outputs,), "float32")
    biases = kernel.buffer("bias", (outputs,), "float32") if bias else None
    row_frames = kernel.buffer("row_frames", ("S",), "int32") if frames else None
    made_steps, made_places = steps // stride, -(-places // stride)
    y = kernel.buffer("y", ("S", made_steps * made_places * outputs), "float32", write=True)

    def store(row: Scalar, spot: Scalar, first: Scalar, lanes: int) -> None:
        """The outputs of a step and a place of it from ``first`` on."""
        step, place = kernel.let("step", spot // made_places), kernel.let("place", spot % made_places)
        total = kernel.local("total", 1, floats(lanes), fill=0)
        if biases is not None:
            total[0] = biases[ramp(first, lanes)]
        with kernel.loop("tap", size) as tap:
            at = kernel.let("at", row * steps + step * stride + tap - before)
            # A quotient below 0 is rounded up, but then the step is outside of its row.
            near = kernel.let("near", minimum(maximum(truncated_quotient(at, steps), 0), kernel.size("S") - 1))
            within = kernel.let("within", at - near * steps)
            exists = [within >= 0, within < steps, positions[near] - near == positions[row] - row]
            if row_frames is not None:
                exists.append(within * (frames // steps) < row_frames[near])
            with kernel.when(all_of(*exists)), kernel.loop("beside", width) as beside:
                there = kernel.let("there", place * stride + beside - width // 2)
                source = kernel.let("source", (within * places + there) * channels)
                with kernel.when(True if width == 1 else all_of(there >= 0, there < places)):
                    numbered = kernel.let("numbered", tap * width + beside)
                    if depthwise:
                        factors = weight[ramp(numbered * outputs + first, lanes)]
                        total[0] = total[0] + x[near, ramp(source + first, lanes)] * factors
                    else:
                        with kernel.loop("channel", channels) as channel:
                            factors = weight[ramp((numbered * channels + channel) * outputs + first, lanes)]
                            total[0] = total[0] + splat(x[near, source + channel], lanes) * factors
        y[row, ramp(spot * outputs + first, lanes)] = total[0]

    if isinstance(kernel, CpuKernelBuilder):
        assert isa is not None
        with kernel.tasks("task", "S", made_steps * made_places) as task:
            row, spot = kernel.split(task, made_steps * made_places, ("row", "spot"))
            each_vector(kernel, outputs, isa.lanes, lambda first, lanes: store(row, spot, first, lanes))
    else:

        def each(row: Scalar, column: Scalar, lanes: int) -> None:
            store(row, kernel.let("spot", column // outputs), kernel.let("first", column % outputs), lanes)

        kernel.each("S", made_steps * made_places * outputs, each, THREADS)
    return kernel.finish()
