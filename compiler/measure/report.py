"""The costs of a bundle, computed from its manifest alone: bytes of weights and KV, memory at a context, dispatches per
token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from ..arch import by_model_type, ctc_of
from ..bundle.entries import ITEM_BYTES, BufferEntry, PlanEntry, StepEntry
from ..bundle.folder import Bundle, ExportBundle
from ..bundle.manifest import HEARING, VISION, Description, ExportManifest, Manifest
from ..ir.expr import evaluate
from ..ir.pages import DRAFT_PAGES, KEPT, KEPT_PAGES, PAGE_DIMS, SOURCE_PAGES
from ..names import QUANTIZATIONS
from ..runtime.errors import RequestError
from ..runtime.generate import PREFILL_CHUNK
from ..runtime.limits import patch_dims
from ..runtime.page_groups import group_windows, pages_of_sequence
from ..runtime.variant import KernelChoice

# The dims of one sequence, with all sampling features and without a LoRA adapter.
ONE_SEQUENCE = {"B": 1, "R": 1, "N": 1, "Z": 1, "A": 1, "W": 1, "DR": 1, "M": 0, "G": 0}


@dataclass(frozen=True, slots=True)
class Report:
    """Sizes in bytes, with the dtype ``activation`` of those that the bundle offers, ``activations``.

    ``weight_bytes`` are all weights, ``host_weight_bytes`` those of them that stay on the host and do not count as
    runtime memory. ``kv_bytes_per_token`` are those of all layers, ``kv_bytes`` the pages for ``context`` tokens, of
    which layers with a window hold only those within it. ``state_bytes`` are one sequence's states of recurrent layers,
    whatever its length. ``draft_bytes_per_token`` are those of the model's heads, if they draft tokens.
    ``vision_bytes`` and ``hearing_bytes`` are the weights of towers that see pictures and hear.
    ``runtime_memory_bytes`` is weights, ``kv_bytes``, ``state_bytes``, tables, and plan buffers for prefill chunks of
    one sequence and one tile of a picture.
    ``dispatches_per_token`` is the count for one sequence at its start, ``dispatches_at_context`` for one of
    ``context`` tokens. ``weight_bytes_per_token`` are those that a decoded token
    reads: of experts those chosen, of tables one row. ``bytes_per_token_at_context`` adds the keys and values that each
    layer's attention sees behind ``context`` tokens, and the states, which are read and written. ``weight_formats``:
    the number of weights and their bytes in each format; vectors are "f32". ``tool_calls`` is the name of the format of
    tool calls; None if the chat template has none that is known.
    """

    model: str
    target: str
    plans: tuple[str, ...]
    quantization: str
    activation: str
    activations: tuple[str, ...]
    kv: str
    context: int
    parameters: int
    weight_bytes: int
    host_weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    draft_bytes_per_token: int
    state_bytes: int
    vision_bytes: int
    hearing_bytes: int
    runtime_memory_bytes: int
    weight_formats: dict[str, dict[str, int]]
    weight_bytes_per_token: int
    bytes_per_token_at_context: int
    dispatches_per_token: int
    dispatches_at_context: int
    kernels: int
    variants: int
    spec: dict[str, Any]
    tool_calls: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Sizes in bytes. ``runtime_memory_bytes`` is the model's files, and keys, values and states of a sequence of
    ``context`` tokens; a framework takes more.
    """

    model: str
    target: str
    plans: tuple[str, ...]
    device: str | None
    quantization: str
    group_size: int | None
    activation: str
    kv: str
    context: int
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes: int
    state_bytes: int
    runtime_memory_bytes: int
    files: dict[str, int]
    spec: dict[str, Any]
    tool_calls: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_export_report(manifest: ExportManifest, *, context: int | None = None) -> ExportReport:
    """Raises RequestError for a context beyond the bundle's."""
    context, spec = choose_context(manifest, context), manifest.spec
    kv = manifest.kv_bytes_per_token()
    sound = ctc_of(spec.model_type)
    graph = (
        by_model_type(spec.model_type).forward(spec, context, context)
        if sound is None
        else sound.encode_sound(spec, context)
    )
    parameters = graph.parameters.values()
    return ExportReport(
        model=manifest.model,
        target=manifest.target,
        plans=manifest.plan_names,
        device=manifest.device,
        quantization=manifest.quantization,
        group_size=manifest.group_size,
        activation=manifest.activation,
        kv=manifest.kv,
        context=context,
        parameters=sum(parameter.rows * (parameter.columns or 1) for parameter in parameters),
        weight_bytes=manifest.model_bytes(),
        kv_bytes_per_token=kv,
        kv_bytes=kv * context,
        state_bytes=manifest.state_bytes(),
        runtime_memory_bytes=manifest.model_bytes() + kv * context + manifest.state_bytes(),
        files={file.file: file.size for file in manifest.files},
        spec=spec.to_json(),
        tool_calls=_tool_calls(manifest),
    )


def _tool_calls(manifest: Description) -> str | None:
    tools = manifest.tokenizer.tools
    return None if tools is None else tools.name


def choose_context(manifest: Description, context: int | None) -> int:
    """The context, or the bundle's if None. Raises RequestError for a context beyond the bundle's."""
    if context is not None and not 1 <= context <= manifest.context:
        raise RequestError(f"--context {context}: the bundle was compiled for 1 to {manifest.context} tokens")
    return context or manifest.context


def make_report(manifest: Manifest, *, context: int | None = None, activation: str | None = None) -> Report:
    """``activation`` None means the bundle's first choice.

    Raises RequestError for a context beyond the bundle's, or a dtype that it does not offer.
    """
    context = choose_context(manifest, context)
    offered = [entry.dtype for entry in manifest.activations]
    chosen = activation or offered[0]
    if chosen not in offered:
        raise RequestError(f"activation {chosen}: the bundle offers {', '.join(offered)}")
    dims = {**dims_of(manifest, context), "S": PREFILL_CHUNK}

    def size(entry: BufferEntry, dims: Mapping[str, int] = dims) -> int:
        elements = math.prod(evaluate(extent, dims) for extent in entry.shape)
        return elements * ITEM_BYTES[chosen if entry.dtype == "activation" else entry.dtype]

    def page_bytes(names: Iterable[str]) -> int:
        return sum(size(manifest.states[name], dict.fromkeys((*PAGE_DIMS, SOURCE_PAGES), 1)) for name in names)

    weights, on_host = (
        sum(plane.size for weight in table.values() for plane in weight.planes)
        for table in (manifest.weights, manifest.host_weights)
    )
    pages = [name for name, state in manifest.states.items() if state.shape[0] in PAGE_DIMS]
    kv_bytes = sum(size(manifest.states[name]) for name in pages)
    seen = keys_seen(manifest, context)
    kv_bytes_seen = sum(page_bytes([name]) * count for name, count in seen) // manifest.page_size
    state_bytes = sum(map(size, manifest.sequence_states.values()))
    heads = [state for state in manifest.states.values() if state.shape[0] in (DRAFT_PAGES, KEPT_PAGES)]
    draft_bytes = sum(size(state, {DRAFT_PAGES: 1, KEPT_PAGES: 1}) for state in heads)
    slots = [state for name, state in manifest.states.items() if name not in pages]
    passing = (*manifest.buffers.values(), *manifest.inputs.values(), *manifest.scratch.values(), *slots)
    others = sum(map(size, passing))
    weights_read = weight_bytes_per_token(manifest)
    tables = sum(math.prod(constant.shape) * 4 for constant in manifest.constants.values())
    return Report(
        model=manifest.model,
        target=manifest.target,
        plans=manifest.plan_names,
        quantization=manifest.quantization,
        activation=chosen,
        activations=tuple(offered),
        kv=manifest.kv,
        context=context,
        parameters=sum(math.prod(weight.shape) for weight in manifest.stored_weights.values()),
        weight_bytes=weights + on_host,
        host_weight_bytes=on_host,
        kv_bytes_per_token=page_bytes(pages) // manifest.page_size,
        kv_bytes=kv_bytes,
        draft_bytes_per_token=draft_bytes // manifest.page_size,
        state_bytes=state_bytes,
        vision_bytes=tower_bytes(manifest, VISION),
        hearing_bytes=tower_bytes(manifest, HEARING),
        runtime_memory_bytes=weights + kv_bytes + others + tables,
        weight_formats=weight_formats(manifest),
        weight_bytes_per_token=weights_read,
        bytes_per_token_at_context=weights_read + kv_bytes_seen + 2 * state_bytes,
        dispatches_per_token=dispatches_per_token(manifest, chosen, 1),
        dispatches_at_context=dispatches_per_token(manifest, chosen, context),
        kernels=len(manifest.kernels),
        variants=sum(map(len, manifest.variants.values())),
        spec=manifest.spec.to_json(),
        tool_calls=_tool_calls(manifest),
    )


def largest_buffer_bytes(manifest: Manifest) -> int:
    """The largest buffer for one sequence of the bundle's context: a plane of a weight, a state, or a buffer that steps
    share. As `largestBuffer` of the page, with the chunks of this machine's runners.
    """
    dims, chosen = {**dims_of(manifest, manifest.context), "S": PREFILL_CHUNK}, manifest.activations[0].dtype
    entries = (*manifest.states.values(), *manifest.buffers.values(), *manifest.scratch.values())
    sizes = [
        math.prod(evaluate(extent, dims) for extent in entry.shape)
        * ITEM_BYTES[chosen if entry.dtype == "activation" else entry.dtype]
        for entry in entries
    ]
    planes = [plane.size for weight in manifest.weights.values() for plane in weight.planes]
    return max(*sizes, *planes, 0)


def dims_of(manifest: Manifest, context: int) -> dict[str, int]:
    """The dims of one sequence with this context and one new token."""
    windows, listed = group_windows(manifest), manifest.pages_for(context)
    pages = [pages_of_sequence(window, context, manifest.page_size, PREFILL_CHUNK) for window in windows]
    # The model's own heads do not draft tokens.
    pools = dict.fromkeys((*PAGE_DIMS, DRAFT_PAGES, KEPT_PAGES, KEPT), 0) | dict(zip(PAGE_DIMS, pages, strict=False))
    audio, vision, sources = manifest.spec.audio, manifest.spec.vision, manifest.source_pages
    longest = context if audio is None else max(context, audio.positions)
    pools |= {SOURCE_PAGES: sources, "LS": sources}
    pools |= patch_dims(manifest, 0 if vision is None else vision.tile_patches, PREFILL_CHUNK)
    return {**pools, "S": 1, "T": longest, "L": listed, "LW": listed, **ONE_SEQUENCE}


def tower_bytes(manifest: Manifest, name: str) -> int:
    """The bytes of the weights of the tower that a plan of this name computes."""
    plan = manifest.plans.get(name)
    read = {name for step in plan.steps for name in step.inputs.values()} if plan is not None else set()
    return sum(plane.size for name in read & manifest.weights.keys() for plane in manifest.weights[name].planes)


def weight_formats(manifest: Manifest) -> dict[str, dict[str, int]]:
    """The parameters and bytes of each format, by its name."""
    formats: dict[str, dict[str, int]] = {}
    for weight in manifest.stored_weights.values():
        counts = formats.setdefault(weight.quantization or "f32", {"parameters": 0, "bytes": 0})
        counts["parameters"] += math.prod(weight.shape)
        counts["bytes"] += sum(plane.size for plane in weight.planes)
    return dict(sorted(formats.items()))


def quantization_of(manifest: Description) -> str:
    """For people: the manifest's, unless the checkpoint was quantized before."""
    if not isinstance(manifest, Manifest) or weight_formats(manifest).keys() - {"f32"} <= set(QUANTIZATIONS):
        return manifest.quantization
    return "the checkpoint's quantization"


def weight_bytes_per_token(manifest: Manifest) -> int:
    """The bytes of weights on the device that the steps of the first plan read for one row."""
    plan, shares = manifest.plan(manifest.plan_names[0]), dict[str, Fraction]()
    for step in plan.steps:
        for role, name in step.inputs.items():
            if name in manifest.weights:
                own = share_read(plan, step, role, manifest.weights[name].shape[0])
                shares[name] = max(own, shares.get(name, own))
    sizes = {name: sum(plane.size for plane in manifest.weights[name].planes) for name in shares}
    return math.ceil(sum(sizes[name] * share for name, share in shares.items()))


def share_read(plan: PlanEntry, step: StepEntry, role: str, rows: int) -> Fraction:
    """The share of a weight of that many rows that a step reads for one row of its input."""
    if role.endswith("table"):
        return Fraction(1, rows)
    if step.op != "expert_linear" or role not in ("weight", "bias"):
        return Fraction(1)
    chosen = plan.buffers[step.inputs["chosen"]].shape[1]
    assert isinstance(chosen, int)
    return Fraction(chosen, step.attrs["experts"])


def keys_seen(manifest: Manifest, context: int) -> list[tuple[str, int]]:
    """The pages that each attention step of the first plan reads, and the number of keys that it sees in them at the
    end of a context, or in those of a window of sound. Layers that share keys each read them.
    """
    steps = manifest.plan(manifest.plan_names[0]).steps
    readers = [step for step in steps if step.op == "attention"]
    seen = [(step.inputs["kv"], min(context, step.attrs.get("window") or context)) for step in readers]
    audio = manifest.spec.audio
    if audio is None:
        return seen
    sources = {name for name, state in manifest.states.items() if state.shape[0] == SOURCE_PAGES}
    return [(kv, audio.positions if kv in sources else count) for kv, count in seen]


def dispatches_per_token(manifest: Manifest, activation: str, context: int) -> int:
    """Dispatches of one step of one sequence at the end of a context, by the bundle's first plan. A step of a model
    without pages has all tokens of the context.
    """
    dims = {**dims_of(manifest, context), "A": 0, "W": 0, "DR": 0}
    if not manifest.paged:
        dims["S"] = context
    first = manifest.plan_names[0]
    plan = manifest.plan(first)
    # A device that runs the dtype has what it needs.
    features = next(entry.needs for entry in manifest.activations if entry.dtype == activation)
    chosen = KernelChoice(manifest, activation, features).of(first, dims)
    grids = (manifest.kernels[name].grid for step in plan.steps for name in chosen[step.variants])
    return sum(all(evaluate(extent, dims) for extent in grid) for grid in grids)


def weight_bytes_of(bundle: Bundle | ExportBundle) -> int:
    """The bytes of weights that are loaded."""
    if isinstance(bundle, Bundle):
        return sum(shard.size for shard in bundle.manifest.shards)
    return bundle.manifest.model_bytes()
