"""The parts of a manifest: its files, weights, plans, kernels, adapters, tokenizer, tests and tuning records.

`manifest.py` joins them. A key that is not here is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, WithJsonSchema
from typing_extensions import TypeAliasType

from ..ir.expr import Condition, Count, Expr, Natural, Positive
from ..ir.rotary_pairs import RotaryPairs
from ..quant.layout import Layout
from .file_name import PLAIN_NAME, require_plain_name

# int8 activations are stored as float32; see `variant.stored_dtype`.
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 4, "int32": 4, "uint32": 4}

# How activations are stored and multiplied. int8, for CPUs and WebGPU, stores float32, but projections multiply 8-bit
# integers.
Activation = TypeAliasType("Activation", Literal["float32", "float16", "bfloat16", "int8"])
# Runtimes check strings of these types by their patterns, under their names.
FileName = TypeAliasType(
    "FileName",
    Annotated[
        str,
        AfterValidator(require_plain_name),
        WithJsonSchema({"type": "string", "pattern": f"^{PLAIN_NAME.pattern}$"}),
    ],
)
Sha256 = TypeAliasType("Sha256", Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")])
# `text/template_tree.py` states its parts.
TemplateTree = TypeAliasType("TemplateTree", list[Any])


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(Entry):
    """A file of the bundle. ``size`` in bytes; ``sha256`` in hexadecimal."""

    file: FileName
    size: Natural
    sha256: Sha256


class PrefixEntry(Entry):
    """The keys and values, and states, after the start of prompts, in whole pages of ``tokens`` tokens. The compiler's
    reference has computed them.

    ``file`` is one of the bundle's files: for each page group, the pages that later tokens read, in their order, each
    with all states of the group in the plan's order; and last a slot of recurrent states. ``tokens_sha256`` is that of
    the token ids as little-endian int32. ``activation`` is the dtype of the devices that can use it.
    """

    file: FileName
    tokens: Count
    tokens_sha256: Sha256
    activation: Literal["float32", "float16"]


class OriginEntry(Entry):
    """What the checkpoint's own files say about where it comes from and under which license it is. None: they do not
    say.

    ``repository`` and ``revision`` are those of the Hugging Face Hub that it was downloaded from. ``license`` is the
    hub's name of the license, such as "apache-2.0"; "other" has a ``license_name``. ``base_models`` are the models that
    it was made from. ``read_from`` names the files that say so.
    """

    repository: str | None
    revision: str | None
    license: str | None
    license_name: str | None
    license_link: str | None
    base_models: list[str]
    read_from: list[str]


class PlaneEntry(Entry):
    """One plane of a weight: ``size`` bytes at ``offset`` of shard number ``shard``."""

    name: str
    dtype: Literal["float32", "float16", "uint32", "int8"]
    shape: list[Count]
    shard: Natural
    offset: Natural
    size: Natural


class WeightEntry(Entry):
    """A weight. ``quantization`` is None for vectors, which are one float32 plane "w". For a matrix it is the bundle's,
    or names the format of integers that the checkpoint stores, such as "q4c": 4 bits and one scale for each row.

    ``layout`` is the memory layout of its planes (N, W). "rows": row after row. "tiles16": (ceil(N/16), W, 16), tiles
    of 16 rows in which the same element of all rows is adjacent; rows beyond N are zeros.
    """

    shape: list[Count]
    quantization: str | None
    layout: Layout
    planes: list[PlaneEntry]


def shards_of(weights: Mapping[str, WeightEntry]) -> set[int]:
    """The numbers of the shards that hold these weights."""
    return {plane.shard for weight in weights.values() for plane in weight.planes}


class BufferEntry(Entry):
    """An array that a runtime allocates. "activation" is the dtype of the chosen activation entry."""

    shape: list[Expr]
    dtype: Literal["float32", "int32", "uint32", "activation"]


class InputEntry(BufferEntry):
    """An array that comes with every batch."""

    dtype: Literal["float32", "int32", "uint32"]


class GatheredEntry(Entry):
    """An input (S, columns) float32 that the runtime gathers: for each new token, its row times ``scale``, in float32.

    ``weights`` are the host weights that hold the table's rows, in order. A token id beyond the last row has zeros. The
    ids must be known: with such an input, no step starts before the tokens of the previous step have been read.
    """

    weights: list[str]
    scale: float


class ConstantEntry(Entry):
    """An array that a runtime computes. "rope": (positions, R/2, 2) float32, ``scale`` times the cosine and sine of
    position * inverse_frequencies[i], for the positions from ``first`` on.
    """

    kind: Literal["rope"]
    shape: list[Count]
    inverse_frequencies: list[float]
    scale: float
    first: Natural = 0


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
    """See `plan.Plan`. ``inputs`` are all inputs of a batch, including those that are ``gathered``. ``outputs`` maps
    names to the buffers that hold them.

    Plan "generate" computes "logits" (R, V), "next_token_ids" and "token_logprobs" (R,), "top_token_ids" and
    "top_logprobs" (W, up to 20); plan "embed" computes "embeddings", float32 and not normalised, and plan "classify"
    computes "scores", float32, for each label. A plan without pages reads complete texts: its embeddings are (B, E),
    its scores (B, L), or (S, L) if each token has scores. With pages or states they are those of sampled tokens:
    (R, E), (R, L). Plan "vision" computes "features" (F, E), float32, of the patches of pictures; see
    `ops/images.py`. Plan "hearing" computes "rows" (S, E), float32: the features of sound.
    """

    inputs: dict[str, InputEntry]
    states: dict[str, BufferEntry]
    constants: dict[str, ConstantEntry]
    buffers: dict[str, BufferEntry]
    steps: list[StepEntry]
    outputs: dict[str, str]
    gathered: dict[str, GatheredEntry]


class BindingEntry(Entry):
    """The buffer at a binding: the step's input or output ``role``, and the ``plane`` if it is a weight.

    Role "scratch" is the manifest's scratch buffer that ``plane`` names.
    """

    role: str
    plane: str | None
    access: Literal["read", "write"]


class KernelEntry(Entry):
    """One kernel: the output of its ``template`` for its ``facts``. Both determine its name.

    ``uniforms`` are the 32-bit integers of its uniform buffer, which follows the last of ``bindings``.

    ``grid`` counts workgroups in x and y. If x exceeds 65,535, the rest is dispatched in z: the kernel computes z *
    gridDim.x + x. In a CPU's shared library, ``entry`` is a function with TVM FFI's calling convention: addresses of
    the bindings, then the uniforms. On CUDA, a launch adds ``shared_bytes`` of workgroup memory to what the kernel
    declares; elsewhere they are 0.
    """

    template: str
    facts: dict[str, Any]
    file: FileName
    sha256: Sha256
    entry: str
    bindings: list[BindingEntry]
    uniforms: list[Expr]
    grid: list[Expr]
    workgroup_size: Natural
    shared_bytes: Natural = 0


class VariantEntry(Entry):
    """One way to run a step: ``kernels`` in order. A runtime uses the first one that fits. A later one with the same
    condition is an alternative that a tuner may put first. ``activation`` None fits all dtypes; ``when`` None fits
    every batch. ``needs`` lists features of the device ("subgroups", "avx512"), of its shading language
    ("subgroup_id", "packed_4x8_integer_dot_product"), and its vendor ("vendor-intel").
    """

    kernels: list[str]
    activation: Activation | None
    needs: list[str]
    when: Condition


class ActivationEntry(Entry):
    """An activation dtype, and the features that it needs, as `VariantEntry` lists them. Without them, a runtime uses
    the next entry.
    """

    dtype: Activation
    needs: list[str]


class LoraModule(Entry):
    """The location of a module's low-rank matrices: A is in rows [part * rank, ..) of state ``a``, B in rows [start,
    stop) of state ``b``.

    The stored rows of B start at its row ``first_row`` and are multiplied by ``factor``. With ``pairs``, rows are
    counted and stored in the order of the rotate-half form.
    """

    a: str
    b: str
    part: Natural
    start: Natural
    stop: Natural
    first_row: Natural
    factor: float
    pairs: RotaryPairs | None = None


class LoraEntry(Entry):
    """LoRA adapters up to a ``rank``. ``modules`` have the names of the checkpoint: "model.layers.0.self_attn.q_proj".

    A module whose rows belong to several projections has an entry for each of them.
    """

    rank: Count
    modules: dict[str, list[LoraModule]]

    @property
    def states(self) -> list[str]:
        """The states that hold adapters, one row per slot."""
        return list(
            dict.fromkeys(name for parts in self.modules.values() for part in parts for name in (part.a, part.b))
        )


class ToolFormatEntry(Entry):
    """How a model writes tool calls: ``begin``, one call or more with ``separator`` between them, ``end``.

    A call is ``before_name``, its name, ``before_arguments``, its arguments and ``after_arguments``. ``separator`` is
    None if an answer has only one call. ``arguments`` is the syntax of the arguments: "json", "gemma" (bare keys, and
    strings between <|"|>) or "xml" (<parameter=key> elements). ``gap`` and any text may precede ``before_arguments``.

    Every ``marker`` in an answer begins calls; if it is "", the entire answer is calls or none, and ``lead`` may
    precede them. After a call, the text up to ``close`` is ignored. ``tokens`` are part of an answer's text even if
    they are special tokens.
    """

    name: str
    marker: str
    begin: str
    before_name: str
    before_arguments: str
    after_arguments: str
    separator: str | None
    end: str
    close: str
    arguments: Literal["json", "gemma", "xml"]
    lead: str
    gap: str
    tokens: list[str]


class ChatTreeEntry(Entry):
    """The syntax ``tree`` of a chat template (`text/template_tree.py`), and the hash of the template's text in UTF-8.
    ``content`` is the form in which the template reads the content of a message.
    """

    tree: TemplateTree
    template_sha256: Sha256
    content: Literal["text", "parts"]


class TokenizerEntry(Entry):
    """``chat_template`` is Hugging Face's Jinja template; None if the model has none. Templates may use the tokens.
    ``chat_tree`` is what browsers evaluate; None if the template has a tag that a tree cannot state.

    ``add_bos_token`` None: the tokenizer's file determines whether a text starts with the bos token. ``tools`` is the
    format of tool calls; None if the chat template has no tools or writes calls in an unknown format.
    """

    file: FileName
    chat_template: str | None
    chat_tree: ChatTreeEntry | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    add_bos_token: bool | None
    tools: ToolFormatEntry | None


class SelfTestRow(Entry):
    """The reference's results for row ``row`` of the prompt: the ``logits`` of ``token_ids``, and log(sum(exp(logits)))
    over all tokens.
    """

    row: Natural
    token_ids: list[Natural]
    logits: list[float]
    logsumexp: float


class SelfTestEntry(Entry):
    """A prompt, and the reference's results for it with float32 activations.

    ``tolerances``: the allowed error for each activation dtype, relative to the largest magnitude among all ``rows``.
    """

    prompt_ids: list[Natural]
    rows: list[SelfTestRow]
    tolerances: dict[str, float]


class VectorTestRow(Entry):
    """The reference's results in row ``row`` of a plan's output: the ``values`` of ``elements``."""

    row: Natural
    elements: list[Natural]
    values: list[float]


class VectorTestEntry(Entry):
    """Texts, and the reference's results for a batch of them with float32 activations.

    ``tolerances``: for each activation dtype, the allowed length of the difference from a row's values, relative to the
    largest length of any row's values. A difference d of vectors of one length bounds their cosine by 1 - d^2 / 2.
    """

    texts: list[list[Natural]]
    rows: list[VectorTestRow]
    tolerances: dict[str, float]


class FeatureTestEntry(Entry):
    """The reference's features of the patches or the frames of `runtime/feature_test.py`, with float32 activations.
    ``tolerances``: as those of `VectorTestEntry`.
    """

    rows: list[VectorTestRow]
    tolerances: dict[str, float]


class AdapterEntry(Entry):
    """A GPU as browsers name it (W3C, WebGPU, GPUAdapterInfo). A value that a browser does not reveal is ""."""

    vendor: str
    architecture: str
    device: str
    description: str


class TunedRow(Entry):
    """If ``when`` holds, ``variant`` is the fastest of the list. Its name is the names of its kernels joined with
    "+".
    """

    when: Condition
    variant: str


class StepTime(Entry):
    """The milliseconds of a step that samples ``rows`` rows of one sequence."""

    rows: Count
    ms: Positive


class DecodeTimes(Entry):
    """What a step costs that checks drafts: ``steps`` of one row and of more, in this order, each read before the next
    one is submitted. ``ahead_ms``: a step of one row that is submitted before earlier ones are read, as without drafts.
    """

    ahead_ms: Positive
    steps: list[StepTime]


class TunedSteps(Entry):
    """The sizes of complete steps that suit an adapter: ``chunk`` tokens of prompts; and the times of ``decode``, from
    which the number of drafts follows. What was not measured is None.
    """

    chunk: Count | None = None
    decode: DecodeTimes | None = None


class TuningEntry(Entry):
    """The measurements on one adapter with one activation dtype: variants to put in front of some lists, and the sizes
    of steps. Records of earlier releases have no ``steps``.
    """

    adapter: AdapterEntry
    activation: Activation
    variants: dict[str, list[TunedRow]]
    steps: TunedSteps | None = None
