"""Checks the steps of a manifest: each is an op of `ir/ops` on arrays that the op accepts. `check_kernels.py` checks
that its kernels are made for these arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..ir.expr import Expr
from ..ir.images import ImageSpec
from ..ir.kv_format import KvName
from ..ir.ops import OPS, Use
from ..ir.pages import (
    DRAFT_PAGES,
    DRAFT_SAMPLED,
    KEPT_PAGES,
    PAGE_DIMS,
    PAGE_INPUTS,
    SOURCE,
    SOURCE_INPUTS,
    SOURCE_PAGES,
    STATES,
    WINDOW,
    WINDOW_PAGES,
)
from ..ir.sampling import ALTERNATIVES
from ..ir.spec import ModelSpec, VisionSpec
from ..ir.speech import FRAMES, ROW_FRAMES
from .batch_arrays import (
    CHANGE_ROWS,
    INPUTS,
    NAMES,
    PATCH_POSITIONS,
    PATCH_STARTS,
    SAMPLED_NAMES,
    Shape,
    is_on_sampled_rows,
)
from .check_kernels import check_names, check_variants
from .entries import PlanEntry, StepEntry
from .fault import Fault, require
from .manifest import AUDIO, CLASSIFY, CTC, DRAFT, EMBED, GENERATE, HEARING, VISION, Manifest

# The inputs that have one value for each row of a step.
BY_TOKEN = frozenset({"positions", "slots", "adapters"})


def check_steps(manifest: Manifest) -> None:
    """Raises Fault."""
    require(bool(manifest.plans), "plans", "is empty")
    offered = [entry.dtype for entry in manifest.activations]
    require(
        bool(offered) and len(set(offered)) == len(offered),
        "activations",
        "must offer at least one dtype, without duplicates",
    )
    require_distinct(manifest)
    check_names(manifest.kernels)
    for name, plan in manifest.plans.items():
        check_plan(f"plans.{name}", name, plan, manifest)


def require_distinct(manifest: Manifest) -> None:
    """Check that all arrays have different names, even in different tables, because runtimes store them in one
    table.
    """
    names = [
        name for table in (manifest.inputs, manifest.states, manifest.constants, manifest.buffers) for name in table
    ]
    names += [f"scratch.{name}" for name in manifest.scratch]
    names += [f"{name}.{plane.name}" for name, weight in manifest.weights.items() for plane in weight.planes]
    names += [*manifest.weights, *manifest.host_weights]
    require(len(set(names)) == len(names), "plans", "has two arrays with one name")


def check_plan(where: str, name: str, plan: PlanEntry, manifest: Manifest) -> None:
    vocabulary = manifest.spec.vocab_size
    for input_name, (shape, dtype) in INPUTS.items():
        entry = plan.inputs.get(input_name)
        fits = entry is None or (tuple(entry.shape), entry.dtype) == (shape, dtype)
        require(fits, f"{where}.inputs.{input_name}", f"must be {list(shape)} of {dtype}")
    check_seeing(where, plan, manifest.spec.vision)
    for gathered in plan.gathered:
        check_gathered(f"{where}.gathered.{gathered[:80]}", gathered, plan, manifest)
    for state, buffer_entry in plan.states.items():
        first, *rest = buffer_entry.shape or [0]
        fixed = first in (*PAGE_DIMS, DRAFT_PAGES, KEPT_PAGES, SOURCE_PAGES, STATES, "N", "M", 1) and all(
            isinstance(size, int) for size in rest
        )
        require(fixed, f"{where}.states.{state}", "must have one row per page, slot or adapter, or one row for all")
    num_top = min(ALTERNATIVES, vocabulary)
    expected: dict[str, dict[str, tuple[Shape, str]]] = {
        GENERATE: {
            "logits": (("R", vocabulary), "float32"),
            "next_token_ids": (("R",), "int32"),
            "token_logprobs": (("R",), "float32"),
            "top_token_ids": (("W", num_top), "int32"),
            "top_logprobs": (("W", num_top), "float32"),
        },
    }
    expected[DRAFT] = expected[GENERATE]
    expected[VISION] = {"features": (("F", manifest.spec.feature_size), "float32")}
    expected[AUDIO] = expected[HEARING] = {"rows": (("S", manifest.spec.hidden_size), "float32")}
    # With pages or states, the last token of each text is sampled.
    text = "R" if any(state.shape[0] in (*PAGE_DIMS, STATES) for state in plan.states.values()) else "B"
    if manifest.embedding is not None:
        expected[EMBED] = {"embeddings": ((text, manifest.embedding.size), "float32")}
    if name == AUDIO:
        check_audio(where, plan, manifest)
    if name == CTC:
        check_ctc(where, plan, manifest)
        expected[CTC] = {"scores": (("S", vocabulary), "float32")}
    if name == VISION:
        check_vision(where, plan, manifest)
    if name == HEARING:
        check_hearing(where, plan, manifest)
    if manifest.classifier is not None:
        rows = "S" if manifest.classifier.per_token else text
        expected[CLASSIFY] = {"scores": ((rows, len(manifest.classifier.labels)), "float32")}
    if name in expected:
        require(
            plan.outputs.keys() == expected[name].keys(), f"{where}.outputs", f"must be {', '.join(expected[name])}"
        )
    for role, buffer in plan.outputs.items():
        output = plan.buffers.get(buffer)
        require(output is not None, f"{where}.outputs.{role}", f"names {buffer[:80]!r}, which is not a buffer")
        if name in expected and output is not None:
            shape, dtype = expected[name][role]
            require(
                (tuple(output.shape), output.dtype) == (shape, dtype),
                f"{where}.outputs.{role}",
                f"must be {list(shape)} of {dtype}",
            )
    sizes = sizes_of(name, manifest)
    for index, step in enumerate(plan.steps):
        here = f"{where}.steps[{index}]"
        try:
            use = check_step(here, step, plan, manifest, sizes)
            check_variants(here, step, use, plan, manifest)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            # The rules of the ops raise these.
            raise Fault(here, str(error)[:300]) from error


@dataclass(frozen=True, slots=True)
class PlanSizes:
    """The `Sizes` of a plan. ``context``: the most positions of a sequence, or of a window of sound."""

    spec: ModelSpec
    context: int
    page_size: int
    kv: KvName
    images: ImageSpec | None = None


def sizes_of(plan: str, manifest: Manifest) -> PlanSizes:
    audio, hearing = manifest.spec.audio, manifest.spec.hearing
    context = manifest.context
    if plan == AUDIO and audio is not None:
        context = audio.positions
    if plan == HEARING and hearing is not None:
        context = hearing.sound_rows
    return PlanSizes(manifest.spec, context, manifest.page_size, manifest.kv, manifest.images)


def check_audio(where: str, plan: PlanEntry, manifest: Manifest) -> None:
    """Check the frames that a plan of sound reads."""
    audio, frames = manifest.spec.audio, plan.inputs.get(FRAMES)
    require(audio is not None, where, "is for models that read sound, and spec.audio is null")
    assert audio is not None
    must_be = ["S", audio.row_elements]
    fits = frames is not None and (frames.shape, frames.dtype) == (must_be, "float32")
    require(fits, f"{where}.inputs.{FRAMES}", f"must be {must_be} of float32")
    placed = f"{SOURCE}positions" in plan.inputs
    require(
        audio.receptive_field is None or (placed and not audio.mel_bins and audio.rows_behind == 0),
        "spec.audio.receptive_field",
        "is for encoders of samples whose rows may be read from the middle of a window on",
    )
    by_frames = (audio.frames_of_row + 2) * audio.mel_bins
    by_samples = (audio.frames_of_row - 1) * audio.hop_samples + audio.frame_samples
    fits = audio.row_elements == by_frames if audio.mel_bins else audio.row_elements >= by_samples
    require(fits, "spec.audio.row_elements", "is not the size of a row's frames")


def check_ctc(where: str, plan: PlanEntry, manifest: Manifest) -> None:
    """Check the arrays that the plan of an encoder of sound reads."""
    conformer = manifest.spec.conformer
    require(conformer is not None and manifest.ctc is not None, where, "is for encoders of sound")
    assert conformer is not None
    tokens: list[Expr] = ["S"]
    declared = {
        FRAMES: (["S", conformer.frames * conformer.mel_bins], "float32"),
        ROW_FRAMES: (tokens, "int32"),
        "positions": (tokens, "int32"),
        "seq_starts": ([["add", "B", 1]], "int32"),
    }
    found = {name: (entry.shape, entry.dtype) for name, entry in plan.inputs.items()}
    require(found == declared, f"{where}.inputs", f"must be {', '.join(declared)} of the sizes of the encoder")


def check_vision(where: str, plan: PlanEntry, manifest: Manifest) -> None:
    """Check the arrays that the plan of a tower reads."""
    vision, images = manifest.spec.vision, manifest.images
    require(vision is not None and images is not None, where, "is for models that see pictures")
    assert vision is not None
    assert images is not None
    taps: list[Expr] = ["V", images.positions.taps]
    declared = {
        "patches": (["V", vision.patch_elements], "float32"),
        "patch_rows": (taps, "int32"),
        "patch_weights": (taps, "float32"),
        PATCH_STARTS: ([["add", "I", 1]], "int32"),
    }
    if vision.tile_side:
        declared[PATCH_POSITIONS] = (["V", 2], "int32")
    if vision.frames > 1:
        declared |= {"changes": (["C", vision.patch_elements], "float32"), CHANGE_ROWS: (["C"], "int32")}
    found = {name: (entry.shape, entry.dtype) for name, entry in plan.inputs.items()}
    require(found == declared, f"{where}.inputs", f"must be {', '.join(declared)} of the sizes of the tower")


def check_hearing(where: str, plan: PlanEntry, manifest: Manifest) -> None:
    """Check the arrays that the plan of a tower that hears reads."""
    hearing = manifest.spec.hearing
    require(hearing is not None and manifest.sounds is not None, where, "is for models that hear")
    assert hearing is not None
    entry, must_be = plan.inputs.get(FRAMES), ["S", hearing.row_elements]
    fits = entry is not None and (entry.shape, entry.dtype) == (must_be, "float32")
    require(fits, f"{where}.inputs.{FRAMES}", f"must be {must_be} of float32")


def check_seeing(where: str, plan: PlanEntry, vision: VisionSpec | None) -> None:
    """Check that the spec says so if tokens of pictures rotate by row and column, or see their whole picture: engines
    read there whether requests need columns, and whether a chunk may end inside a picture.
    """
    rotates, sees = vision is not None and bool(vision.mrope_section), vision is not None and vision.both_ways != "none"
    for name, expected in (("rope_positions", rotates), ("reach", sees)):
        require(expected or name not in plan.inputs, f"{where}.inputs.{name}", "is not for the tower of spec.vision")


def check_gathered(where: str, name: str, plan: PlanEntry, manifest: Manifest) -> None:
    """Check that an input has the width of its table, and that the table has a row for every token."""
    gathered, entry = plan.gathered[name], plan.inputs.get(name)
    missing = [weight[:80] for weight in gathered.weights if weight not in manifest.host_weights]
    require(not missing, where, f"names {', '.join(missing)}, which are not weights of the host")
    tables = [manifest.host_weights[weight].shape for weight in gathered.weights]
    widths = {columns for _, columns in tables}
    require(len(widths) == 1, where, f"has tables with {sorted(widths)} columns; all must have the same number")
    must_be = ["S", *widths]
    fits = name not in INPUTS and entry is not None and (entry.shape, entry.dtype) == (must_be, "float32")
    require(fits, where, f"must be an input {must_be} of float32")
    rows, vocabulary = sum(rows for rows, _ in tables), manifest.spec.vocab_size
    require(rows >= vocabulary, where, f"has {rows} rows for {vocabulary} tokens")
    require(math.isfinite(gathered.scale) and gathered.scale > 0, where, f"has the scale {gathered.scale}")


def check_step(where: str, step: StepEntry, plan: PlanEntry, manifest: Manifest, sizes: PlanSizes | None = None) -> Use:
    """The step as its op sees it. ``sizes``: those of the plan; None: of a plan of text. Raises Fault, or the errors of
    the op's rules.
    """
    require(step.op in OPS, where, f"op {step.op[:40]!r} is not known")
    op = OPS[step.op]
    arrays = {role: array_of(where, name, plan, manifest) for role, name in step.inputs.items()}
    op.canonical(step.op, step.attrs)
    op.check_inputs(step.op, {role: kind for role, (_, kind) in arrays.items()}, step.attrs)  # type: ignore[misc]
    for name, value in step.attrs.items():
        require(not isinstance(value, float) or math.isfinite(value), where, f"attribute {name} is not finite")
    shapes = {role: shape for role, (shape, _) in arrays.items()}
    use = Use(op, shapes, {role: kind for role, (_, kind) in arrays.items()}, op.complete(step.attrs))
    check_roles(where, step, use, plan)
    for check in op.checks:
        check(use, sizes or manifest)
    results = op.results(shapes, step.attrs)
    require(results.keys() == step.outputs.keys(), where, f"outputs must be {', '.join(results) or 'none'}")
    for role, (shape, dtype) in results.items():
        buffer = plan.buffers.get(step.outputs[role])
        require(buffer is not None, where, f"output {role} must be a buffer")
        assert buffer is not None
        made, stored = f"{list(shape)} of {dtype}", f"{buffer.shape} of {buffer.dtype}"
        require(
            (shape, dtype) == (tuple(buffer.shape), buffer.dtype),
            where,
            f"output {role} is {made}, but its buffer is {stored}",
        )
    if "into" in step.inputs:
        require(
            step.inputs["into"] == step.outputs.get(op.result or ""), where, "output and 'into' must be the same buffer"
        )
    return use


def array_of(where: str, name: str, plan: PlanEntry, manifest: Manifest) -> tuple[Shape, str]:
    """The shape and kind of an array that a step names."""
    for table in (plan.buffers, plan.inputs, plan.states):
        if name in table:
            return tuple(table[name].shape), table[name].dtype
    if name in plan.constants:
        return tuple(plan.constants[name].shape), plan.constants[name].kind
    require(name in manifest.weights, where, f"names {name[:80]!r}, which is not an array of the plan")
    shape = manifest.weights[name].shape
    return tuple(shape), "vector" if len(shape) == 1 else "matrix"


def check_roles(where: str, step: StepEntry, use: Use, plan: PlanEntry) -> None:
    """Check the names of arrays whose values kernels use as indices, and that an op's rows are tokens."""
    op, shapes, on_sampled_rows = use.op, use.shapes, is_on_sampled_rows(step)
    names = {**NAMES, **op.names, **(SAMPLED_NAMES if on_sampled_rows else {})}
    if DRAFT_SAMPLED in plan.states:
        names["sampled"] = DRAFT_SAMPLED
    if "kv" in shapes and shapes["kv"][0] == WINDOW_PAGES:
        names = {role: f"{WINDOW}{name}" if name in PAGE_INPUTS else name for role, name in names.items()}
    if "feature_rows" in shapes and shapes["feature_rows"][0] == "C":
        # Added to patches, and computed of their changes.
        names["feature_rows"] = CHANGE_ROWS
        del names["features"]
    if "qkv" in shapes and shapes["qkv"][0] == "V":
        names["seq_starts"] = PATCH_STARTS
    if "axis_positions" in shapes and shapes["axis_positions"][0] == "V":
        names["axis_positions"] = PATCH_POSITIONS
    if "kv" in shapes and shapes["kv"][0] == SOURCE_PAGES:
        names = {role: f"{SOURCE}{name}" if name in SOURCE_INPUTS else name for role, name in names.items()}
    if "position_table" in shapes and {f"{SOURCE}slots", f"{SOURCE}positions"} <= plan.inputs.keys():
        # A batch may have only the last rows of a window of sound.
        names["positions"] = f"{SOURCE}positions"
    for role, name in step.inputs.items():
        require(names.get(role, name) == name, where, f"input {role} is {name[:80]!r}; it must be {names.get(role)!r}")
    for role in step.inputs.keys() & op.states:
        require(step.inputs[role] in plan.states, where, f"input {role} must be a state")
    # An op that looks up rows by their indices checks those itself.
    rows = [shapes[role][0] for role in ("x", "q", "qkv", "k") if role in shapes and "rows" not in shapes]
    by_token = ("R" if on_sampled_rows else "S",)
    allowed: tuple[Expr, ...] = by_token if shapes.keys() & BY_TOKEN else ("S", "R", "V", "F", "C")
    # Rows of experts are pairs of a token and an expert that it chose.
    allowed += tuple(["mul", *shapes[role]] for role in ("chosen", "weights") if role in shapes)
    are_rows = (op.per_text and rows == ["B"]) or all(each in allowed for each in rows)
    require(are_rows, where, "has rows that are neither tokens nor patches")
    if "into" in shapes and "x" in shapes and "chosen" not in shapes:
        require(shapes["into"][0] == shapes["x"][0], where, "input into must have the rows of x")
