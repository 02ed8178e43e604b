"""adjust_logits: apply penalties, bias and mask to the rows that request them, and copy the other rows.

One task: one chunk of the columns of one row.
"""

from __future__ import annotations

from ...ir.sampling import BIAS, COUNTS, IN_PROMPT, MASK, MASKED, Settings
from ..builder import Kernel, Scalar, cast, number, select, truncated_quotient
from ..vectors import floats, ramp, splat, with_lanes
from .builder import CpuKernelBuilder, Isa, pieces
from .logits import chunk_of, num_chunks

WORD = 32


def adjust_logits(name: str, *, isa: Isa, columns: int) -> Kernel:
    setting = {field: index for index, field in enumerate(Settings._fields)}
    kernel = CpuKernelBuilder(name)
    logits = kernel.buffer("logits", ("R", columns), "float32")
    settings = kernel.buffer("settings", ("R", len(setting)), "float32")
    slots = kernel.buffer("slots", ("R", 2), "int32")
    counts = kernel.buffer("counts", ("N", columns), "int32")
    bias = kernel.buffer("bias", ("N", columns), "float32")
    mask = kernel.buffer("mask", ("N", -(-columns // WORD)), "int32")
    y = kernel.buffer("y", ("A", columns), "float32", write=True)

    with kernel.tasks("task", "A", num_chunks(columns)) as task:
        row, chunk = kernel.split(task, num_chunks(columns), ("row", "chunk"))
        part = chunk_of(kernel, isa, chunk, columns)
        slot, flags = kernel.let("slot", slots[row, 0]), kernel.let("flags", slots[row, 1])
        penalty = kernel.let("penalty", settings[row, setting["repetition_penalty"]])
        frequency = kernel.let("frequency", settings[row, setting["frequency_penalty"]])
        presence = kernel.let("presence", settings[row, setting["presence_penalty"]])

        def adjust(start: Scalar, lanes: int) -> None:
            values, integers = floats(lanes), with_lanes("int32", lanes)
            here = ramp(start, lanes)
            x = kernel.local("x", 1, values)
            x[0] = logits[row, here]
            with kernel.when((flags & COUNTS) != 0):
                count = kernel.let("count", counts[slot, here])
                times = kernel.let("times", count & number(IN_PROMPT - 1, integers))
                punished = select(x[0] > number(0, values), x[0] / splat(penalty, lanes), x[0] * splat(penalty, lanes))
                x[0] = select(count == number(0, integers), x[0], punished)
                x[0] = x[0] - cast(times, values) * splat(frequency, lanes)
                x[0] = select(times > number(0, integers), x[0] - splat(presence, lanes), x[0])
            with kernel.when((flags & BIAS) != 0):
                x[0] = x[0] + bias[slot, here]
            with kernel.when((flags & MASK) != 0):
                # A vector begins at a multiple of its lanes, so one word holds all of its bits.
                index, first_bit = kernel.split(start, WORD, ("word_index", "first_bit"))
                bits = (splat(mask[slot, index], lanes) >> ramp(first_bit, lanes)) & number(1, integers)
                x[0] = select(bits == number(0, integers), number(float(MASKED), values), x[0])
            y[row, here] = x[0]

        lanes = isa.lanes
        with kernel.loop("vector", truncated_quotient(part.stop - part.first, lanes)) as number_of:
            adjust(part.first + number_of * lanes, lanes)
        if columns % lanes:
            with kernel.when(part.stop == columns):
                for start, rest in pieces(columns % lanes, lanes):
                    adjust(columns // lanes * lanes + start, rest)
    return kernel.finish()
