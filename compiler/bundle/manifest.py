"""The manifest: all data that a runtime needs to run a bundle.

This file and `entries.py`, which has the parts of a manifest, define the format: Python reads and checks manifests with
these classes, and `schema.py` writes the TypeScript types from them. A key that is not here is an error, so a runtime
never ignores what a newer compiler meant.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator
from typing_extensions import TypeAliasType

from ..ir.expr import Count, Natural
from ..ir.images import ImageSpec
from ..ir.kv_format import KvName
from ..ir.pages import DRAFT_PAGES, KEPT_PAGES, PAGE_DIMS, STATES
from ..ir.plan import union
from ..ir.sounds import SoundSpec
from ..ir.spec import ModelSpec
from ..ir.speech import CtcSpec, SpeechSpec
from ..ir.tasks import ClassifierSpec, EmbeddingSpec, Task, task_of
from ..runtime.errors import BundleError
from .entries import (
    ITEM_BYTES,
    ActivationEntry,
    BufferEntry,
    ConstantEntry,
    Entry,
    FeatureTestEntry,
    FileEntry,
    InputEntry,
    KernelEntry,
    LoraEntry,
    OriginEntry,
    PlanEntry,
    PrefixEntry,
    SelfTestEntry,
    TokenizerEntry,
    TuningEntry,
    VariantEntry,
    VectorTestEntry,
    WeightEntry,
)

FORMAT_VERSION = 8
MANIFEST_FILE = "manifest.json"
ExportActivation = TypeAliasType("ExportActivation", Literal["float32", "float16", "bfloat16"])
# The plans that runtimes know by name: they generate text, compute embeddings, and score the labels of a classifier.
GENERATE, EMBED, CLASSIFY = "generate", "embed", "classify"
# That of the model's own heads, which guess the tokens that follow: beside "generate".
DRAFT = "draft"
# That of a model that sees pictures, which makes features of their patches: beside "generate".
VISION = "vision"
# That of a model that hears, which makes features of frames of sound: beside "generate".
HEARING = "hearing"
# That of the encoder of sound to whose rows the model attends: beside "generate".
AUDIO = "audio"
# That of an encoder of sound, which scores the tokens of each row.
CTC = "ctc"
# The plans that read pictures and sound for "generate", whose weights may have more bits than the model's.
ENCODERS = (VISION, HEARING, AUDIO)


class Description(Entry):
    """The part of the manifest that all bundles share. ``context``: the longest sequence in tokens. ``page_size``:
    tokens per page.

    ``quantization`` is that of the matrices that name no other. ``kv`` is the format of keys and values: "activation",
    as computed, "q8" or "q4", 8-bit or 4-bit integers, or "fp8", 8-bit floats (E4M3). The model makes vectors if
    ``embedding`` is given, scores if ``classifier`` is, transcripts of sound if ``speech`` or ``ctc`` is, and otherwise
    generates text. ``images`` is None if it reads no pictures, ``sounds`` if it does not hear. ``prefixes`` are starts
    of prompts that need not be computed. Bundles of earlier releases have none, and ``origin`` is None.
    """

    format_version: Natural
    generator: str
    target: str
    model: str
    spec: ModelSpec
    embedding: EmbeddingSpec | None
    classifier: ClassifierSpec | None
    images: ImageSpec | None
    sounds: SoundSpec | None
    speech: SpeechSpec | None
    ctc: CtcSpec | None
    quantization: str
    context: Count
    page_size: Count
    kv: KvName
    tokenizer: TokenizerEntry
    files: list[FileEntry]
    origin: OriginEntry | None = None
    prefixes: list[PrefixEntry] = Field(default_factory=list)

    @property
    def plan_names(self) -> tuple[str, ...]:
        """The names of the bundle's plans."""
        return (EMBED if self.embedding is not None else CLASSIFY if self.classifier is not None else GENERATE,)

    @property
    def task(self) -> Task:
        return task_of(self.embedding or self.classifier or self.speech or self.ctc)

    @property
    def generates(self) -> bool:
        """Whether the model generates text from text."""
        return self.task == "generate"

    @property
    def transcribes(self) -> bool:
        """Whether the model writes down what is said in sound."""
        return self.task == "transcribe"

    @property
    def paged(self) -> bool:
        """Whether sequences keep keys and values in pages, or states. If not, a batch holds complete texts."""
        return self.generates

    @property
    def keeps_states(self) -> bool:
        """Whether sequences have states of recurrent layers, in slots."""
        return self.generates and self.spec.states is not None

    @property
    def sees(self) -> bool:
        """Whether the model makes features of pictures, which it reads beside texts."""
        return VISION in self.plan_names and self.images is not None

    @property
    def hears(self) -> bool:
        """Whether the model makes features of sound, which it reads beside texts."""
        return HEARING in self.plan_names and self.sounds is not None

    def pages_for(self, tokens: int) -> int:
        """The number of pages for ``tokens`` tokens of one sequence."""
        return -(-tokens // self.page_size)


class ExportManifest(Description):
    """A bundle in a framework's own format, which the framework's own tools load. ``files`` are all its files.

    A page holds a complete sequence: ``page_size`` is ``context``. ``device`` is the device that the graph was made
    for, None if the framework has no choice. ``activation`` is the dtype of activations, keys and values.
    ``group_size`` is the number of weights that share a scale, None if they are not quantized.
    """

    kv: Literal["activation", "q8"]
    device: str | None
    activation: ExportActivation
    group_size: Count | None

    def model_bytes(self) -> int:
        """The size of all files but the tokenizer's, which is the minimum in memory."""
        return sum(file.size for file in self.files if file.file != self.tokenizer.file)

    def kv_bytes_per_token(self) -> int:
        """The bytes of keys and values of all layers, without the scales of 8-bit ones."""
        spec = self.spec
        item_bytes = 1 if self.kv == "q8" else ITEM_BYTES[self.activation]
        return 2 * spec.num_attention_layers * spec.num_kv_heads * spec.head_dim * item_bytes

    def state_bytes(self) -> int:
        """The bytes of a slot of the states of recurrent layers, which are float32; 0 without such layers."""
        return self.spec.state_elements * ITEM_BYTES["float32"]


class Manifest(Description):
    """A bundle with plans and kernels. ``files`` are all files except kernels and shards.

    ``plans`` has one entry for each task of the bundle: to "generate" text, to "embed" or to "classify" it, to "draft"
    tokens of a text that it generates, "vision" to make features of a picture's patches, "hearing" to make them of
    frames of sound, "audio" to read sound, and "ctc" to score the tokens of its rows. A name means the same array in
    all plans, so plans share weights, constants and states, including the pages of keys and values.

    ``arch`` is the architecture that the kernels were compiled for, None if they are source code for any device of the
    target.

    Keys and values are states. "activation": pages (P, 2, K, page_size, D) of the activation dtype, keys, then values.
    In a plan with two page groups, the layers with a window have PW pages instead of P; see `ir/pages`.
    "q8": (P, 2, K, page_size, D/4 + 1) uint32: for each page, plane and kv head, D int8 codes of every row, four per
    word, the first in the lowest bits, then the bits of every row's float32 scale. "q4": (.., D/8 + 1): codes plus 8,
    eight per word, element b in the low half of byte b and element b + 4 in the high half; keys are multiplied by a
    Hadamard matrix first, and so are queries. "fp8": as "q8", with E4M3 floats instead of integers.

    Recurrent layers have states (Z, ..) float32, one row for each of Z slots. The input "state_slots" (B, 2) says from
    which slot each sequence's states are read, and into which they are written; see `ir/ops/states.py`.

    ``host_weights`` are matrices that stay in their files: a runtime reads only the rows that it gathers. Their layout
    is "rows", and their shards hold nothing else.

    ``scratch`` are buffers through which the kernels of one step pass values; all steps share them. ``self_test`` is
    None if the user disabled it, and for models that generate no text, which have ``vector_test``; models that see
    pictures have ``vision_test`` too, and those that hear ``hearing_test``. ``tuning`` has one entry per adapter and
    activation dtype. ``lora`` is None if the bundle does not accept adapters.
    """

    arch: str | None
    lora: LoraEntry | None
    activations: list[ActivationEntry]
    plans: dict[str, PlanEntry]
    variants: dict[str, list[VariantEntry]]
    scratch: dict[str, BufferEntry]
    kernels: dict[str, KernelEntry]
    weights: dict[str, WeightEntry]
    host_weights: dict[str, WeightEntry]
    shards: list[FileEntry]
    self_test: SelfTestEntry | None
    vector_test: VectorTestEntry | None
    vision_test: FeatureTestEntry | None
    hearing_test: FeatureTestEntry | None
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
    def paged(self) -> bool:
        # Runners ask with every batch.
        states = (state for plan in self.plans.values() for state in plan.states.values())
        return any(state.shape[0] in (*PAGE_DIMS, STATES) for state in states)

    @property
    def matrix_formats(self) -> str:
        """The formats of all matrices: the quantization, or those that a quantized checkpoint has."""
        names = {weight.quantization for weight in self.stored_weights.values()} - {None}
        return ", ".join(sorted(str(name) for name in names))

    @property
    def stored_weights(self) -> dict[str, WeightEntry]:
        """The weights of the device and those of the host."""
        return self.weights | self.host_weights

    @property
    def expert_weights(self) -> set[str]:
        """The weights that have rows for each of several experts, of which a step reads those of the chosen ones."""
        steps = (step for plan in self.plans.values() for step in plan.steps if step.op == "expert_linear")
        return {step.inputs[role] for step in steps for role in ("weight", "bias") if role in step.inputs}

    @property
    def inputs(self) -> dict[str, InputEntry]:
        """The inputs of all plans, by name. States, constants and buffers are joined in the same way."""
        return union(plan.inputs for plan in self.plans.values())

    @property
    def large_inputs(self) -> set[str]:
        """The inputs that few batches have or that are much larger than the others: what the host gathers, and the
        patches of pictures, the frames of sound, and features.
        """
        gathered = {name for plan in self.plans.values() for name in plan.gathered}
        return gathered | {name for name, entry in self.inputs.items() if entry.shape[0] in ("V", "F", "C")}

    @property
    def states(self) -> dict[str, BufferEntry]:
        return union(plan.states for plan in self.plans.values())

    @property
    def constants(self) -> dict[str, ConstantEntry]:
        return union(plan.constants for plan in self.plans.values())

    @property
    def buffers(self) -> dict[str, BufferEntry]:
        return union(plan.buffers for plan in self.plans.values())

    @property
    def source_pages(self) -> int:
        """The pages of a window of sound; 0 if the model reads none."""
        return 0 if self.spec.audio is None else self.pages_for(self.spec.audio.positions)

    @property
    def has_assistant(self) -> bool:
        """Whether what drafts tokens reads the keys and values of the model, and has none of its own."""
        plan = self.plans.get(DRAFT)
        return plan is not None and all(state.shape[0] != DRAFT_PAGES for state in plan.states.values())

    @property
    def sequence_states(self) -> dict[str, BufferEntry]:
        """The states with one row for each slot of `Limits.states`."""
        return {name: state for name, state in self.states.items() if state.shape[0] == STATES}

    @property
    def keeps_states(self) -> bool:
        return bool(self.sequence_states)

    def page_states(self, group: int, *, drafts: bool = False) -> list[str]:
        """The states that hold the keys and values of a page group; with ``drafts``, also the rows of its tokens that
        are kept for the model's heads.
        """
        dims = (PAGE_DIMS[group], *([KEPT_PAGES] if drafts and group == 0 else []))
        return [name for name, state in self.states.items() if state.shape[0] in dims]
