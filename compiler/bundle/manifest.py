"""The manifest: everything that a runtime must know about a bundle, as data.

This file is the format's definition: Python reads and checks manifests with these classes, and `schema.py` writes the TypeScript types from
them. A key that is not here is an error, so a runtime never ignores what a newer compiler meant.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from ..errors import BundleError
from ..ir.expr import Condition, Expr
from ..ir.plan import union
from ..ir.spec import EmbeddingSpec, ModelSpec
from ..quant.layout import Layout

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"
# The targets whose bundles are a framework's own files; all others have a plan of ours.
EXPORTS = ("onnx", "mlx")
# The plans that runtimes know by name: one that generates text, one that embeds it.
GENERATE, EMBED = "generate", "embed"
# Activations of int8 lie in memory as float32; see `variant.stored_dtype`.
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 4, "int32": 4, "uint32": 4}

# How activations are stored and multiplied. int8 is for CPUs: float32, but projections multiply integers of 8 bits.
Activation = Literal["float32", "float16", "bfloat16", "int8"]


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(Entry):
    """A file of the bundle. ``size`` in bytes; ``sha256`` in hexadecimal."""

    file: str
    size: int
    sha256: str


class PlaneEntry(Entry):
    """One plane of a weight: ``size`` bytes at ``offset`` of shard number ``shard``."""

    name: str
    dtype: Literal["float32", "float16", "uint32"]
    shape: list[int]
    shard: int
    offset: int
    size: int


class WeightEntry(Entry):
    """A weight. ``quantization`` is None for vectors, which are one float32 plane "w".

    ``layout`` is how its planes (N, W) lie in memory. "rows": row after row. "tiles16": (ceil(N/16), W, 16), tiles of 16 rows with the same
    element of all rows side by side, rows beyond N being zeros.
    """

    shape: list[int]
    quantization: str | None
    layout: Layout
    planes: list[PlaneEntry]


class BufferEntry(Entry):
    """An array that a runtime allocates. "activation" is the dtype of the chosen activation entry."""

    shape: list[Expr]
    dtype: Literal["float32", "int32", "uint32", "activation"]


class InputEntry(BufferEntry):
    """An array that comes with every batch."""

    dtype: Literal["float32", "int32", "uint32"]


class ConstantEntry(Entry):
    """An array that a runtime computes. "rope": (positions, R/2, 2) float32, ``scale`` times cosine and sine of position *
    inverse_frequencies[i].
    """

    kind: Literal["rope"]
    shape: list[int]
    inverse_frequencies: list[float]
    scale: float


class StepEntry(Entry):
    """One step. ``inputs`` and ``outputs`` map roles to names of buffers, inputs, states, constants or weights.

    ``variants`` names the list of kernels that can run it.
    """

    op: str
    variants: str
    inputs: dict[str, str]
    outputs: dict[str, str]
    attrs: dict[str, Any]


class PlanEntry(Entry):
    """See `plan.Plan`. ``inputs`` are all that a batch must bring. ``outputs`` maps to the buffers that hold them.

    Plan "generate" gives "logits" (R, V), "next_token_ids" and "token_logprobs" (R,), "top_token_ids" and "top_logprobs" (W, up to 20);
    plan "embed" gives "embeddings" (R, E), float32 and not normalised.
    """

    inputs: dict[str, InputEntry]
    states: dict[str, BufferEntry]
    constants: dict[str, ConstantEntry]
    buffers: dict[str, BufferEntry]
    steps: list[StepEntry]
    outputs: dict[str, str]


class BindingEntry(Entry):
    """The buffer at a binding: the step's input or output ``role``, and of a weight the ``plane``.

    Role "scratch" is the manifest's scratch buffer that ``plane`` names.
    """

    role: str
    plane: str | None
    access: Literal["read", "write"]


class KernelEntry(Entry):
    """One kernel: what its ``template`` writes for its ``facts``, from which its name is made.

    ``uniforms`` are the 32-bit integers of its uniform buffer, which follows the last of ``bindings``.

    ``grid`` counts workgroups in x and y. Where x exceeds 65,535, the rest goes to z: the kernel takes z * gridDim.x + x. Of a CPU's
    shared library ``entry`` is a function of TVM FFI's calling convention: addresses of the bindings, then the uniforms.
    """

    template: str
    facts: dict[str, Any]
    file: str
    sha256: str
    entry: str
    bindings: list[BindingEntry]
    uniforms: list[Expr]
    grid: list[Expr]
    workgroup_size: int


class VariantEntry(Entry):
    """One way to run a step: ``kernels`` one after the other. The first row that fits is taken; a later row with the same condition is an
    alternative, for a tuner to put first. ``activation`` None fits both dtypes, ``when`` None every batch. ``needs`` names features of the
    device ("subgroups", "avx512") and of its shading language ("subgroup_id").
    """

    kernels: list[str]
    activation: Activation | None
    needs: list[str]
    when: Condition


class ActivationEntry(Entry):
    """An activation dtype, and the device features without which a runtime takes the next entry."""

    dtype: Activation
    needs: list[str]


class LoraModule(Entry):
    """Where a module's low-rank matrices go: A to rows [part * rank, ..) of state ``a``, B to rows [start, stop) of state ``b``.

    Of B these are the rows from ``first_row`` on, times ``factor``.
    """

    a: str
    b: str
    part: int
    start: int
    stop: int
    first_row: int
    factor: float


class LoraEntry(Entry):
    """LoRA adapters up to a ``rank``. ``modules`` are named as in the checkpoint: "model.layers.0.self_attn.q_proj".

    A module whose rows go to several projections has an entry for each of them.
    """

    rank: int
    modules: dict[str, list[LoraModule]]

    @property
    def states(self) -> list[str]:
        """The states that hold adapters, slot by slot."""
        return list(
            dict.fromkeys(name for parts in self.modules.values() for part in parts for name in (part.a, part.b))
        )


class TokenizerEntry(Entry):
    """``chat_template`` is Jinja, as Hugging Face writes it; None where the model has none. The tokens are those that templates may name.

    ``add_bos_token`` None leaves it to the tokenizer's file whether a text starts with the bos token.
    """

    file: str
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    add_bos_token: bool | None


class SelfTestRow(Entry):
    """What the reference gives after row ``row`` of the prompt: the ``logits`` of ``token_ids``, and log(sum(exp(logits))) over all."""

    row: int
    token_ids: list[int]
    logits: list[float]
    logsumexp: float


class SelfTestEntry(Entry):
    """A prompt, and what the reference computes for it with float32 activations.

    ``tolerances``: for each activation dtype, how far a device may be off, relative to the largest magnitude among all ``rows``.
    """

    prompt_ids: list[int]
    rows: list[SelfTestRow]
    tolerances: dict[str, float]


class AdapterEntry(Entry):
    """A GPU as browsers name it (W3C, WebGPU, GPUAdapterInfo); "" is what a browser keeps to itself."""

    vendor: str
    architecture: str
    device: str
    description: str


class TunedRow(Entry):
    """Where ``when`` holds, ``variant`` is the fastest: a row of the list, by the names of its kernels joined with "+"."""

    when: Condition
    variant: str


class TuningEntry(Entry):
    """What was measured on one adapter with one activation dtype: rows that go in front of those of some variants lists."""

    adapter: AdapterEntry
    activation: Activation
    variants: dict[str, list[TunedRow]]


class Description(Entry):
    """What every bundle's manifest says, whatever runs it. ``context``: the longest sequence in tokens. ``page_size``: tokens of a page.

    ``kv`` is the format of keys and values: "activation", as computed, or "q8", 8-bit integers. ``embedding`` is None where the model
    generates text.
    """

    format_version: int
    generator: str
    target: str
    model: str
    spec: ModelSpec
    embedding: EmbeddingSpec | None
    quantization: str
    context: int
    page_size: int
    kv: Literal["activation", "q8"]
    tokenizer: TokenizerEntry
    files: list[FileEntry]

    @property
    def plan_names(self) -> tuple[str, ...]:
        """What the bundle can do."""
        return (EMBED if self.embedding is not None else GENERATE,)

    def pages_for(self, tokens: int) -> int:
        """How many pages hold that many tokens of one sequence."""
        return -(-tokens // self.page_size)


class ExportManifest(Description):
    """A bundle in a framework's own form, which the framework's own tools load; ``files`` are all that is in it.

    A page holds a whole sequence: ``page_size`` is ``context``. ``device`` is what the graph was made for, None where the framework asks
    for no choice; ``activation`` the dtype of activations, keys and values. ``group_size``: weights that share a scale, None where they
    are not quantized.
    """

    device: str | None
    activation: Literal["float32", "float16", "bfloat16"]
    group_size: int | None

    def model_bytes(self) -> int:
        """Of all files but the tokenizer's: what is in memory at least."""
        return sum(file.size for file in self.files if file.file != self.tokenizer.file)

    def kv_bytes_per_token(self) -> int:
        """Keys and values of all layers; of 8-bit ones without their scales."""
        spec = self.spec
        item_bytes = 1 if self.kv == "q8" else ITEM_BYTES[self.activation]
        return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * item_bytes


class Manifest(Description):
    """A bundle with plans and kernels. ``files`` are those beside kernels and shards.

    ``plans`` has one entry for each thing that the bundle can do: "generate" text or "embed" it. A name means the same array in all plans,
    so plans share weights, constants and states, the pages of keys and values among them.

    ``arch`` is what the kernels were compiled for, None where they are source that any device of the target takes.

    Keys and values are states. "activation": pages (P, 2, K, page_size, D) of the activation dtype, keys, then values. "q8":
    (P, 2, K, page_size, D/4 + 1) uint32: for each page, plane and kv head D int8 codes of every row, four a word, the first lowest, then
    the bits of every row's float32 scale. ``scratch`` are buffers through which the kernels of one step pass values on; all steps share
    them.
    ``self_test`` is None where the compiler was asked to leave it out, and for models that embed; ``tuning`` holds one entry an adapter and
    activation dtype. ``lora`` is None where the bundle takes no adapters.
    """

    arch: str | None
    lora: LoraEntry | None
    activations: list[ActivationEntry]
    plans: dict[str, PlanEntry]
    variants: dict[str, list[VariantEntry]]
    scratch: dict[str, BufferEntry]
    kernels: dict[str, KernelEntry]
    weights: dict[str, WeightEntry]
    shards: list[FileEntry]
    self_test: SelfTestEntry | None
    tuning: list[TuningEntry]

    @field_validator("plans")
    @classmethod
    def names_agree(cls, plans: dict[str, PlanEntry]) -> dict[str, PlanEntry]:
        """Refuse plans in which one name means two arrays."""
        known: dict[str, Entry] = {}
        for plan in plans.values():
            for table in (plan.inputs, plan.states, plan.constants, plan.buffers):
                for name, entry in table.items():
                    if known.setdefault(name, entry) is not entry and known[name] != entry:
                        raise ValueError(f"'{name}' means different arrays in plans {', '.join(plans)}")
        return plans

    def plan(self, name: str) -> PlanEntry:
        """Raises BundleError for a plan that the bundle does not have."""
        if name not in self.plans:
            raise BundleError(
                f"{self.model}: has no plan '{name}'; it has {', '.join(self.plans)}", plan=name, known=list(self.plans)
            )
        return self.plans[name]

    @property
    def plan_names(self) -> tuple[str, ...]:
        return tuple(self.plans)

    @property
    def inputs(self) -> dict[str, InputEntry]:
        """Of all plans, by name; so are states, constants and buffers."""
        return union(plan.inputs for plan in self.plans.values())

    @property
    def states(self) -> dict[str, BufferEntry]:
        return union(plan.states for plan in self.plans.values())

    @property
    def constants(self) -> dict[str, ConstantEntry]:
        return union(plan.constants for plan in self.plans.values())

    @property
    def buffers(self) -> dict[str, BufferEntry]:
        return union(plan.buffers for plan in self.plans.values())

    def page_states(self) -> list[str]:
        """The states that hold keys and values, page by page."""
        return [name for name, state in self.states.items() if state.shape[0] == "P"]
