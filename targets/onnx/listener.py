"""Listener: convert the graph of an encoder of sound to ONNX nodes. Sounds of a batch are equally long; the inputs and
outputs have the names that optimum and Transformers.js give them.

    encoder_model.onnx: input_features (batch, mel bins, frames of a window), or input_values (batch, samples)
    -> last_hidden_state (batch, rows, E)

    model.onnx of an encoder whose rows name tokens: input_features (batch, frames, mel bins),
    attention_mask (batch, frames) int64: ones, then zeros for the frames that only fill up the batch
    -> logits (batch, rows, V); rows behind the end of a sound name the blank

All others are float32.
"""

from __future__ import annotations

import numpy as np

from nearfar.compiler.ir.spec import AudioSpec
from nearfar.compiler.ir.speech import FRAMES, HOP, ROW_FRAMES, SAMPLE_RATE, CtcSpec
from nearfar.compiler.runtime.audio.windows import least_samples

from .builder import ELEMENT_TYPES
from .decoder import Form, form_of
from .emitter import Emitter
from .encoder import ENCODER_FORMS, add_output, float32
from .encoder_mask import HIDDEN, hidden_rows
from .sound_ops import CONVOLVE, add_clip_norm, add_convolve, add_row_moments

# The positions of new tokens, or of rows, which are those of every sequence.
NEW_POSITIONS = "positions.range"


def build_listener(emitter: Emitter) -> None:
    """Fill the emitter's builder with an encoder to whose rows a decoder attends. Raises UnsupportedModel for an op
    that has no form.
    """
    audio = emitter.spec.audio
    assert audio is not None
    # Every row sees the complete window.
    emitter.bias = ""
    (add_mel_frames if audio.mel_bins else add_samples)(emitter, audio)
    for node in emitter.graph.nodes:
        form_of(node, LISTENER_FORMS).emit(emitter, node)
    builder, length = emitter.builder, audio.positions if audio.mel_bins else "encoder_sequence_length"
    result = emitter.sequences(emitter.graph.outputs["rows"], "rows.sequences")
    if audio.rows_behind:
        integers = builder.integers
        result = builder.add("Slice", [result, integers(0), integers(-audio.rows_behind), integers(1)], "rows.attended")
    add_output(emitter, result, "last_hidden_state", ("batch_size", length, emitter.spec.hidden_size))


def add_mel_frames(emitter: Emitter, audio: AudioSpec) -> None:
    """A row reads its two frames, the one before and the one behind them, with zeros around the window."""
    builder = emitter.builder
    add, integers = builder.add, builder.integers
    length, mels = audio.positions, audio.mel_bins
    builder.add_input("input_features", "float32", ("batch_size", mels, 2 * length))
    frames = add("Transpose", ["input_features"], "frames.by_time", perm=[0, 2, 1])
    frames = add("Pad", [frames, integers(0, 1, 0, 0, 1, 0)], "frames.padded")
    pairs = add("Reshape", [frames, integers(0, length + 1, 2 * mels)], "frames.pairs")
    parts = [
        add("Slice", [pairs, integers(start), integers(start + length), integers(1)], f"frames.{start}")
        for start in (0, 1)
    ]
    add_rows_of_frames(emitter, "input_features", integers(length), add("Concat", parts, "frames.sequences", axis=2))


def add_samples(emitter: Emitter, audio: AudioSpec) -> None:
    """See `rows_of_window` and `row_frames` in `audio/windows.py`. Silence follows sound that is too short for a row;
    if it is longer than the longest window, the call fails, and the runtime's message names this node.
    """
    builder = emitter.builder
    add, integers = builder.add, builder.integers
    hop, count, step = audio.hop_samples, audio.frames_of_row, audio.hop_samples * audio.frames_of_row
    builder.add_input("input_values", "float32", ("batch_size", "num_samples"))
    samples = add("Shape", ["input_values"], "samples.given", start=1)
    number = add("Max", [samples, integers(least_samples(audio))], "samples")
    # Frames that do not overlap are completed with zeros.
    missing = hop - 1 if audio.frame_samples == hop else 0
    beyond = add("Add", [number, integers(missing - audio.frame_samples)], "samples.beyond_first")
    frames = add("Add", [add("Div", [beyond, integers(hop)], "frames.beyond_first"), integers(1)], "frames.number")
    length = add("Div", [add("Add", [frames, integers(count - 1)], "frames.to_rows"), integers(count)], "rows.number")
    one_more = add("Add", [length, integers(1)], "rows.one_more")
    missing_samples = add(
        "Sub", [add("Mul", [one_more, integers(step)], "samples.of_rows"), samples], "samples.missing"
    )
    pads = add("Concat", [integers(0, 0, 0), missing_samples], "samples.pads", axis=0)
    padded = add("Pad", ["input_values", pads], "samples.padded")
    shape = add("Concat", [integers(0), one_more, step_within(emitter, length, audio.positions, step)], "shape", axis=0)
    seconds = audio.positions * step // SAMPLE_RATE
    rows = add("Reshape", [padded, shape], f"sound_must_not_be_longer_than_{seconds}_seconds")
    # Nothing reads the length before it is checked.
    one_more = add("Shape", [rows], "rows.shape", start=1, end=2)
    length = add("Sub", [one_more, integers(1)], "rows.length")
    parts = [add("Slice", [rows, integers(0), length, integers(1)], "frames.own")]
    if audio.row_elements > step:
        more = [add("Slice", [rows, integers(1), one_more, integers(1)], "frames.next")]
        parts.append(
            add("Slice", [*more, integers(0), integers(audio.row_elements - step), integers(2)], "frames.ends")
        )
    add_rows_of_frames(emitter, "input_values", length, add("Concat", parts, "frames.sequences", axis=2))
    add_row_frames(emitter, frames, count)
    if audio.rows_behind:
        attended = add("Sub", [length, integers(audio.rows_behind)], "rows.number_attended")
        seen = add("Less", [NEW_POSITIONS, attended], "rows.seen")
        emitter.bias = hidden_rows(builder, emitter.activation, add("Unsqueeze", [seen, integers(0)], "seen"), "bias")


def step_within(emitter: Emitter, length: str, limit: int, step: int) -> str:
    """``step``, a list of one, or more if a sound has more rows than the limit: a reshape to it fails."""
    builder = emitter.builder
    more = builder.add("Sub", [length, builder.integers(limit)], "rows.beyond_limit")
    more = builder.add("Max", [more, builder.integers(0)], "rows.too_many")
    return builder.add("Add", [more, builder.integers(step)], "rows.step")


def add_rows_of_frames(emitter: Emitter, source: str, length: str, frames: str) -> None:
    """Our values "frames" and "positions", of ``frames`` (batch, length, elements)."""
    builder = emitter.builder
    add, integers = builder.add, builder.integers
    (columns,) = (each.shape[1] for each in emitter.graph.inputs.values() if each.name == FRAMES)
    assert isinstance(columns, int)
    rows = add("Reshape", [frames, integers(-1, columns)], "frames.rows")
    emitter.names[FRAMES] = add("Cast", [rows], FRAMES, to=ELEMENT_TYPES[emitter.activation])
    add("Concat", [add("Shape", [source], "batch", end=1), length], "ids_shape", axis=0)
    add("Concat", ["ids_shape", integers(-1)], "sequences_shape", axis=0)
    add_positions(emitter, integers(0), length)


def add_positions(emitter: Emitter, start: str, stop: str) -> None:
    """Our value "positions": numbers from ``start`` to ``stop``, lists of one, for each sequence of the batch."""
    builder = emitter.builder
    start, stop = (
        builder.add("Squeeze", [each], f"positions.{name}") for name, each in (("start", start), ("stop", stop))
    )
    numbers = builder.add("Range", [start, stop, builder.integer(1)], NEW_POSITIONS)
    numbers = emitter.names["position_ids"] = builder.add("Expand", [numbers, "ids_shape"], "position_ids")
    emitter.names["positions"] = builder.add("Reshape", [numbers, builder.integers(-1)], "positions")


def add_row_frames(emitter: Emitter, frames: str, count: int) -> None:
    """Our value "row_frames", given the ``frames`` of each sound of the batch (batch, 1) or of all (1,). A row has up
    to ``count`` frames.
    """
    builder = emitter.builder
    add, integers = builder.add, builder.integers
    starts = add("Mul", [NEW_POSITIONS, integers(count)], f"{ROW_FRAMES}.starts")
    left = add("Sub", [frames, starts], f"{ROW_FRAMES}.left")
    own = add("Min", [add("Max", [left, integers(0)], f"{ROW_FRAMES}.some"), integers(count)], f"{ROW_FRAMES}.own")
    of_all = add("Expand", [own, "ids_shape"], f"{ROW_FRAMES}.of_all")
    emitter.names[ROW_FRAMES] = add("Reshape", [of_all, integers(-1)], ROW_FRAMES)


def build_ctc(emitter: Emitter, task: CtcSpec) -> None:
    """Fill the emitter's builder with an encoder whose rows name tokens. Raises UnsupportedModel for an op that has no
    form.
    """
    builder, spec = emitter.builder, emitter.spec
    add, integers, conformer = builder.add, builder.integers, spec.conformer
    assert conformer is not None
    mels, count, axes = conformer.mel_bins, conformer.frames, ("batch_size", "num_frames")
    builder.add_input("input_features", "float32", (*axes, mels))
    builder.add_input("attention_mask", "int64", axes)
    given = add("Shape", ["attention_mask"], "frames.given", start=1)
    length = add("Div", [add("Add", [given, integers(count - 1)], "frames.to_rows"), integers(count)], "rows.number")
    missing = add("Sub", [add("Mul", [length, integers(count)], "frames.of_rows"), given], "frames.missing")
    pads = add("Concat", [integers(0, 0, 0, 0), missing, integers(0)], "frames.pads", axis=0)
    padded = add("Pad", ["input_features", pads], "frames.padded")
    # Behind a sound, processors add a masked frame.
    step = step_within(emitter, length, spec.max_position_embeddings + 1, count * mels)
    shape = add("Concat", [integers(0), length, step], "frames.shape", axis=0)
    seconds = spec.max_position_embeddings * count * HOP // SAMPLE_RATE
    rows = add("Reshape", [padded, shape], f"sound_must_not_be_longer_than_{seconds}_seconds")
    length = add("Shape", [rows], "rows.length", start=1, end=2)
    add_rows_of_frames(emitter, "input_features", length, rows)
    frames = add("ReduceSum", ["attention_mask", integers(1)], "frames.number", keepdims=1)
    add_row_frames(emitter, frames, count)
    exists = add("Greater", [f"{ROW_FRAMES}.of_all", integers(0)], "rows.exist")
    emitter.bias = hidden_rows(builder, emitter.activation, exists, "bias")
    for node in emitter.graph.nodes:
        form_of(node, LISTENER_FORMS).emit(emitter, node)
    scores = emitter.sequences(emitter.graph.outputs["scores"], "scores.sequences")
    blank = np.full(spec.vocab_size, HIDDEN[emitter.activation], np.float32)
    blank[task.blank] = 0
    chosen = [add("Unsqueeze", [exists, integers(2)], "scores.exist"), float32(emitter, scores)]
    add("Where", [*chosen, builder.constant("scores.blank", blank)], "logits")
    builder.add_output("logits", "float32", ("batch_size", "num_rows", spec.vocab_size))


LISTENER_FORMS: dict[str, Form] = {
    **ENCODER_FORMS,
    "convolve": Form(
        add_convolve,
        CONVOLVE,
        ("bias", "row_frames"),
    ),
    "row_moments": Form(add_row_moments, ("frame",)),
    "clip_norm": Form(add_clip_norm, ("eps",)),
}
