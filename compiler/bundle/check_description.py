"""Checks what a manifest says of its model: the numbers of its spec, of its pictures, sounds, labels and templates."""

from __future__ import annotations

import math
from dataclasses import asdict

from ..ir.expr import MAX_COUNT
from ..ir.images import ImageSpec
from ..ir.sounds import SoundSpec
from ..ir.spec import ExpertSpec, HearingSpec, RopeSpec, VisionSpec
from ..ir.tasks import forms_spans
from ..shared.script import SharedScript
from .digest import text_sha256
from .fault import Fault, require
from .manifest import Description

# Code loops over all layers before it reads any file, so their number needs a limit.
MAX_LAYERS = 10_000
# The limit of the context and the vocabulary, for which runtimes allocate arrays before they read any file.
MAX_LENGTH = 2**24


def check_description(manifest: Description) -> None:
    """Raises Fault."""
    spec = manifest.spec
    require(spec.num_layers <= MAX_LAYERS, "spec.num_layers", f"is {spec.num_layers}; the maximum is {MAX_LAYERS}")
    require(
        spec.num_heads % spec.num_kv_heads == 0,
        "spec.num_heads",
        f"{spec.num_heads} is not a multiple of {spec.num_kv_heads} kv heads",
    )
    lengths = [("spec.vocab_size", spec.vocab_size), ("context", manifest.context)]
    lengths += [] if spec.audio is None else [("spec.audio.positions", spec.audio.positions)]
    for name, length in lengths:
        require(length <= MAX_LENGTH, name, f"is {length}; the maximum is {MAX_LENGTH}")
    require(manifest.context <= spec.max_position_embeddings, "context", "is longer than the model's positions")
    conforms = (spec.conformer is None) == (manifest.ctc is None)
    require(
        conforms and (manifest.ctc is None or manifest.ctc.blank < spec.vocab_size), "ctc", "does not fit the model"
    )
    if spec.vision is not None:
        check_vision_spec(spec.vision, manifest.images, spec.num_layers)
    if spec.hearing is not None:
        check_hearing_spec(spec.hearing, manifest.sounds)
    require(
        len(spec.windows) in (0, spec.num_layers),
        "spec.windows",
        f"has {len(spec.windows)} entries for {spec.num_layers} layers",
    )
    check_rope("spec.rope", spec.rope, spec.head_dim)
    if spec.window_rope is not None:
        check_rope("spec.window_rope", spec.window_rope, spec.window_head_dim or spec.head_dim)
    require(spec.num_kv_shared_layers < spec.num_layers, "spec.num_kv_shared_layers", "leaves no layer of its own")
    require(spec.per_layer_size <= MAX_COUNT, "spec.per_layer_size", "is out of range")
    require(
        all(layer < spec.num_layers for layer in spec.unrotated),
        "spec.unrotated",
        "names a layer that does not exist",
    )
    if spec.experts is not None:
        check_experts(spec.experts, spec.num_layers)
    if manifest.images is not None:
        check_images(manifest.images, spec.vocab_size)
    if manifest.sounds is not None:
        check_sounds(manifest.sounds, spec.vocab_size, manifest.images)
    classifier = manifest.classifier
    if classifier is not None and classifier.transitions is not None:
        spans = classifier.per_token and forms_spans(classifier.labels)
        require(spans, "classifier.labels", "are not the labels of tokens that form spans")
    for token in (*spec.eos_token_ids, *([] if spec.bos_token_id is None else [spec.bos_token_id])):
        require(token < MAX_COUNT, "spec", f"has token id {token}")
    file = manifest.tokenizer.file
    require(any(entry.file == file for entry in manifest.files), "tokenizer.file", f"{file!r} is not in files")
    tree, template = manifest.tokenizer.chat_tree, manifest.tokenizer.chat_template or ""
    require(
        tree is None or tree.template_sha256 == text_sha256(template),
        "tokenizer.chat_template",
        "has changed since chat_tree was made of it; change the checkpoint's template",
    )
    wrong = None if tree is None else SharedScript.of_thread().wrong_tree_part(tree.tree)
    require(wrong is None, f"tokenizer.chat_tree.tree{wrong}", "is not a part of a template's syntax tree")


def check_vision_spec(vision: VisionSpec, images: ImageSpec | None, num_layers: int) -> None:
    where = "spec.vision"
    require(images is not None, "images", "is null, but the model sees pictures")
    assert images is not None
    require(vision.num_layers <= MAX_LAYERS, where, f"has {vision.num_layers} layers; the maximum is {MAX_LAYERS}")
    require(vision.tile_patches <= MAX_LENGTH, where, f"has tiles of {vision.tile_patches} patches")
    require(vision.hidden_size % vision.num_heads == 0, where, f"has {vision.num_heads} heads in {vision.hidden_size}")
    tables = 2 * images.positions.side if images.positions.rule == "axes" else images.positions.side**2
    # Its table of angles has a row for each.
    require(vision.tile_side <= MAX_LENGTH, where, f"has tiles of {vision.tile_side} patches a side")
    own = all(layer < vision.num_layers for layer in vision.deepstack_layers)
    require(own and len(vision.deepstack_layers) <= num_layers, where, "has features for layers that do not exist")
    require(len(vision.mrope_section) in (0, 3), where, f"rotates by {len(vision.mrope_section)} axes")
    frames = 1 if images.video is None else images.video.frames
    require(frames == vision.frames, where, f"joins {vision.frames} frames, but images.video {frames}")
    expected = (images.block, 3 * images.patch**2, tables)
    found = (vision.block, vision.patch_elements, vision.positions)
    require(found == expected, where, f"has blocks, patches and positions of {found}, but images has {expected}")


def check_hearing_spec(hearing: HearingSpec, sounds: SoundSpec | None) -> None:
    where = "spec.hearing"
    require(sounds is not None, "sounds", "is null, but the model hears")
    assert sounds is not None
    elements = sounds.frames * (sounds.samples if sounds.mel is None else sounds.mel.bins)
    require(hearing.num_layers <= MAX_LAYERS, where, f"has {hearing.num_layers} layers; the maximum is {MAX_LAYERS}")
    require(
        hearing.hidden_size % hearing.num_heads == 0, where, f"has {hearing.num_heads} heads in {hearing.hidden_size}"
    )
    require(hearing.row_elements == elements, where, f"has rows of {hearing.row_elements}, but sounds of {elements}")
    rows = -(-sounds.most // (sounds.samples * sounds.frames))
    require(rows <= hearing.sound_rows <= MAX_LENGTH, where, f"has {hearing.sound_rows} rows, but sounds up to {rows}")


def check_rope(where: str, rope: RopeSpec, head_dim: int) -> None:
    rotated = head_dim if rope.rotary_dim is None else rope.rotary_dim
    require(
        rotated <= head_dim and rotated % 2 == 0,
        f"{where}.rotary_dim",
        f"is {rotated}, but heads have {head_dim} elements",
    )
    require(rope.original_max_position_embeddings <= MAX_COUNT, where, "has a length out of range")
    require(0 <= rope.query_beta < math.inf, where, f"has a query_beta of {rope.query_beta}")


def check_experts(experts: ExpertSpec, num_layers: int) -> None:
    where = "spec.experts"
    require(experts.chosen <= experts.number, where, f"chooses {experts.chosen} of {experts.number} experts")
    require(all(layer < num_layers for layer in experts.dense_layers), where, "names a layer that does not exist")
    require(math.isfinite(experts.shift), where, f"has the shift {experts.shift}")


def check_images(images: ImageSpec, vocab_size: int) -> None:
    # JSON has no other numbers.
    for name, values in {"mean": images.mean, "std": images.std}.items():
        require(all(map(math.isfinite, values or ())), f"images.{name}", f"is {list(values or ())}")
    wrong = SharedScript.of_thread().ask("wrongImages", asdict(images), vocab_size)
    if wrong is not None:
        part, what = wrong
        raise Fault(f"images.{part}", what)


def check_sounds(sounds: SoundSpec, vocab_size: int, images: ImageSpec | None) -> None:
    seen = None if images is None else asdict(images)
    wrong = SharedScript.of_thread().ask("wrongSounds", asdict(sounds), seen, vocab_size)
    if wrong is not None:
        part, what = wrong
        raise Fault(f"sounds.{part}", what)
