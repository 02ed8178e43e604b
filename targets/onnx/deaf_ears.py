"""A graph that refuses sound: Transformers.js opens audio_encoder.onnx of every Gemma 4, and these folders read none.

input_features (batch, frames, mel bins) float32, input_features_mask (batch, frames) bool -> audio_features
"""

from __future__ import annotations

from .emitter import Emitter

# The name of the node that fails, which a user of another runtime reads in its message.
DEAF = "this_folder_reads_no_sound"


def build_deaf_ears(emitter: Emitter) -> None:
    """Fill the emitter's builder."""
    builder = emitter.builder
    add, axes = builder.add, ("batch_size", "num_frames")
    builder.add_input("input_features", "float32", (*axes, "num_bins"))
    builder.add_input("input_features_mask", "bool", axes)
    # A reshape to another size is the error.
    shape = add("Add", [add("Shape", ["input_features"], "shape"), builder.integers(1)], "other_shape")
    add("Identity", [add("Reshape", ["input_features", shape], DEAF)], "audio_features")
    builder.add_output("audio_features", "float32", ("batch_size", "num_features", emitter.spec.hidden_size))
