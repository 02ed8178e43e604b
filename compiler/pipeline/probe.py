"""Derives the probe of a bundle from the graph and the plan that were just compiled: one layer of each kind, the
kernels of the complete plan, and a self-test of its own. See `bundle/probe.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..bundle.entries import FileEntry, PlaneEntry, WeightEntry
from ..bundle.folder import Bundle
from ..bundle.manifest import GENERATE, Manifest
from ..bundle.probe import PROBE_VERSION, VALUES, ProbeFile, made_plane
from ..ir.graph import Graph
from ..ir.plan import Plan, Step
from ..passes.keep_layers import keep_layers, layers_of, names_read
from ..passes.quantize_kv import quantize_kv
from ..quant import Quantization
from ..quant.layout import Layout
from ..runtime.errors import CheckpointError, RequestError
from .plan_entries import plan_entry
from .self_test import Reference, make_self_test
from .vector_test import make_vector_test
from .weights import lay_out_weights, shard_sizes

# The weights are written here while the reference reads them; no bundle contains the folder.
FOLDER = "probe"
# Below this size, the caches of a device hold all of a layer, and a second one is measured too.
SMALL_LAYER_BYTES = 8 << 20
# A bundle whose probe would have more weights gets none.
MOST_BYTES = 1 << 30
# More than the few rows that some kernels take, so that the test computes with those of long prompts.
TOKENS = 12
# The rows whose values a plane's 16 are the quantiles of.
SAMPLED_ROWS = 64


def layers_that_stand(manifest: Manifest, plan: str) -> list[int]:
    """For each layer of a plan, the one of the probe that stands for it: the first of its kind, or in turns that and
    one more if the layers are small. Layers are of one kind if their steps have the same lists of variants.
    """
    entry = manifest.plans[plan]
    stored = manifest.stored_weights.keys() | entry.states.keys()
    numbers = layers_of(names_read(entry.steps), stored)
    lists: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for number, step in zip(numbers, entry.steps, strict=True):
        if number is not None:
            lists.setdefault(number, []).append(step.variants)
            weights = (manifest.weights[name] for name in step.inputs.values() if name in manifest.weights)
            sizes[number] = sizes.get(number, 0) + sum(plane.size for weight in weights for plane in weight.planes)
    kinds: dict[tuple[str, ...], list[int]] = {}
    for number, own in sorted(lists.items()):
        kinds.setdefault(tuple(own), []).append(number)
    kept = {kind: [numbers[0]] for kind, numbers in kinds.items()}
    more = next(((kind, numbers[1]) for kind, numbers in kinds.items() if len(numbers) > 1), None)
    if more is not None and sum(sizes[number] for (number,) in kept.values()) < SMALL_LAYER_BYTES:
        kept[more[0]].append(more[1])
    turn = {number: index for numbers in kinds.values() for index, number in enumerate(numbers)}
    return [
        kept[tuple(lists[number])][turn[number] % len(kept[tuple(lists[number])])] if number in lists else number
        for number in range(1 + max(lists, default=-1))
    ]


def make_probe(
    bundle: Bundle,
    name: str,
    graph: Graph,
    plan: Plan,
    plan_of: Callable[[Graph], Plan],
    quantization: Quantization,
    layout: Layout,
) -> ProbeFile | None:
    """The probe of a bundle whose plan has this ``name``. ``graph`` and ``plan``: before and after the passes, which
    ``plan_of`` runs. None for a model whose layers cannot stand alone, or whose made weights lead to numbers that are
    not finite.
    """
    manifest = bundle.manifest
    complete = manifest.plans[name]
    layers = layers_that_stand(manifest, name)
    cut = keep_layers(graph, set(layers))
    if cut is None:
        return None
    probed = plan_of(cut)
    names = variants_of(probed, plan, [step.variants for step in complete.steps])
    if names is None or set(names) != {step.variants for step in complete.steps}:
        return None
    stored = lay_out_weights(probed.weights, quantization, layout)
    sizes = shard_sizes(stored)
    if sum(sizes) > MOST_BYTES:
        return None
    weights = {weight.parameter.name: weight.entry for weight in stored}
    values = {
        f"{each}:{plane.name}": quantile_bits(bundle, each, plane)
        for each, weight in weights.items()
        for plane in weight.planes
        if plane.dtype != "uint32"
    }
    entries = {name: plan_entry(probed, names)}
    try:
        shards = write_shards(bundle.path, weights, sizes, values)
        changes = {"plans": entries, "weights": weights, "shards": shards}
        small = Bundle(bundle.path, manifest.model_copy(update=changes))
        reference = Reference(small, quantize_kv(cut, manifest.kv), probed.weights)
        generates = name == GENERATE
        test = make_self_test(reference, tokens=TOKENS) if generates else None
        vectors = None if generates else make_vector_test(reference)
    except (CheckpointError, RequestError):
        return None
    finally:
        shutil.rmtree(bundle.path / FOLDER, ignore_errors=True)
    return ProbeFile(
        probe_version=PROBE_VERSION, layers=layers, plans=entries, weights=weights, shards=shards, values=values,
        self_test=test, vector_test=vectors,
    )  # fmt: skip


def variants_of(probed: Plan, plan: Plan, lists: Sequence[str]) -> list[str] | None:
    """The list of variants of each step of a probe, by ``lists``, those of the steps of the complete plan. None if a
    step is none of these.
    """
    known: dict[str, set[str]] = {}
    for step, variants in zip(plan.steps, lists, strict=True):
        known.setdefault(step_key(step, plan), set()).add(variants)
        known.setdefault(without_numbers(step_key(step, plan)), set()).add(variants)
    found: list[str] = []
    for step in probed.steps:
        key = step_key(step, probed)
        # A step of two layers, as one with the norm of the layer before it, may be one of other two.
        names = known.get(key) or known.get(without_numbers(key)) or set()
        if len(names) != 1:
            return None
        found += names
    return found


def without_numbers(key: str) -> str:
    """A step's key without the numbers of layers."""
    return re.sub(r"\.\d+\.", "..", key)


def step_key(step: Step, plan: Plan) -> str:
    """A text that is equal for steps that have the same variants: buffers count by shape and dtype."""

    inputs = {
        role: [repr(plan.buffers[name].shape), plan.buffers[name].dtype] if name in plan.buffers else name
        for role, name in step.inputs.items()
    }
    return json.dumps([step.op, sorted(inputs.items()), sorted(step.outputs), repr(sorted(step.attrs.items()))])


def quantile_bits(bundle: Bundle, name: str, plane: PlaneEntry) -> list[int]:
    """The bits of 16 values of a plane: the quantiles in the middle of 16 equal parts, each one that the plane has."""
    rows = bundle.plane(name, plane.name, 0, min(SAMPLED_ROWS, bundle.manifest.weights[name].shape[0]))
    ordered = np.sort(np.asarray(rows).reshape(-1))
    chosen = ordered[[(2 * part + 1) * len(ordered) // (2 * VALUES) for part in range(VALUES)]]
    return [int(bits) for bits in chosen.view(f"uint{8 * chosen.itemsize}")]


def write_shards(
    path: Path, weights: Mapping[str, WeightEntry], sizes: Sequence[int], values: Mapping[str, list[int]]
) -> list[FileEntry]:
    """Write the shards below ``path`` with made planes, in the order of the weights. Bytes between planes are zeros."""
    (path / FOLDER).mkdir()
    shards = [np.zeros(size, np.uint8) for size in sizes]
    planes = [(f"{name}:{plane.name}", plane) for name, weight in weights.items() for plane in weight.planes]
    for number, (key, plane) in enumerate(planes):
        shards[plane.shard][plane.offset : plane.offset + plane.size] = made_plane(plane, number, values.get(key))
    entries = []
    for number, shard in enumerate(shards):
        file, data = f"{FOLDER}/{number:05d}.bin", shard.tobytes()
        (path / file).write_bytes(data)
        entries.append(FileEntry(file=file, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    return entries
