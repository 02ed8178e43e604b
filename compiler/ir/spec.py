"""ModelSpec: the normalised hyper-parameters of a model, whatever file format they came from.

Formats (`formats/`) find a checkpoint's configuration, and an architecture (`arch/`) turns it into a ModelSpec. Later
stages never read the original keys. A ModelSpec is data: a bundle's manifest stores it as JSON, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .expr import Count, Natural, Positive

# The keys of the largest tile or page of a kernel for complete texts. Kernels read complete tiles.
KEY_TILE = 64


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of the rotate-half form (Su et al. 2021). `rope.py` defines the scalings.

    ``rotary_dim`` elements of each head are rotated, None for all of them. "proportional" rotates pairs over the whole
    head, of which only the first ``rotary_dim / 2`` have an angle. The cosines and sines are multiplied by
    ``attention_factor``, and rotated queries by 1 + ``query_beta`` ln(1 + floor(position / original length)).
    """

    theta: Positive
    scaling: Literal["none", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional"] = "none"
    factor: Positive = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: Natural = 0
    rotary_dim: Natural | None = None
    attention_factor: Positive = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[Positive, ...] = ()
    long_factors: tuple[Positive, ...] = ()
    query_beta: float = 0.0


# What a layer mixes tokens with: attention, a short gated convolution (LFM2), a gated delta rule (Qwen3.5), Mamba-2, or
# attention and Mamba-2 side by side (Falcon-H1).
Mixer = Literal["attention", "short_conv", "gated_delta", "mamba2", "attention_mamba2"]


@dataclass(frozen=True, slots=True)
class StateSpec:
    """The sizes of layers with a state. All have a convolution over the last ``taps`` tokens, with a bias if
    ``conv_bias``. A matrix state has ``heads``: of ``key_dim`` x ``value_dim`` elements (gated delta rule), or
    ``value_dim`` x ``key_dim`` (Mamba-2, whose sizes are the head and the state). ``groups`` of heads share keys.
    Layers without a matrix have no heads.

    ``bias``: the mixer's projections have biases. ``norm`` says how Mamba-2's result y and its gate z become one:
    "none" y * silu(z), "after" the norm of that, and "before" the norm of y, times silu(z). It is over ``norm_groups``
    equal parts of a row.
    """

    taps: Count
    conv_bias: bool = False
    bias: bool = False
    heads: Natural = 0
    groups: Natural = 0
    key_dim: Natural = 0
    value_dim: Natural = 0
    norm: Literal["none", "after", "before"] = "none"
    norm_groups: Count = 1


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """The experts of a mixture: feed-forwards of ``intermediate_size``, of which each token uses ``chosen`` of
    ``number``. `ops.experts.route` defines ``router``, ``normalized`` and ``scale``.

    The layers in ``dense_layers`` have a feed-forward of the model's intermediate size instead. ``biases``: those of
    the router and of every expert; ``choice_bias``: a bias of scores for the choice only. ``limit``, ``slope`` and
    ``shift`` are those of the experts' gates; see `ops.elementwise.gated`.
    """

    number: Count
    chosen: Count
    intermediate_size: Count
    router: Literal["softmax", "sigmoid", "softmax_chosen"] = "softmax"
    normalized: bool = False
    scale: Positive = 1.0
    dense_layers: tuple[Natural, ...] = ()
    biases: bool = False
    choice_bias: bool = False
    limit: Positive | None = None
    slope: Positive = 1.0
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class DistanceSpec:
    """The distances of keys and rows that change scores of attention: their ``buckets``, and ``max_distance``, from
    which on all are in the last bucket. `formats/distance_tensors.py` computes the bucket of a distance.
    """

    buckets: Count
    max_distance: Count


@dataclass(frozen=True, slots=True)
class ConvolutionSpec:
    """A convolution of an encoder's embedding over the ``size`` tokens around each, an odd number, with an
    ``activation`` behind it. Its result is added to that of the first layer.
    """

    size: Count
    activation: str


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """The tower of a model that sees pictures, and the projector behind it: together they make features, which take the
    places of tokens' embeddings. ``model_type`` is that of the complete model; `arch/vision` has one file for each.

    A patch has ``patch_elements`` numbers, a block of ``block`` x ``block`` patches becomes one feature, and a tile of
    a picture has at most ``tile_patches``. The tower has a table of ``positions``. ``projector_size``: the elements
    between the projector's two projections, which pass through ``projector_activation``; None if it has only one.
    ``projector_norm``: it has a norm before them, with ``projector_eps``; ``projector_bias``: they have biases.
    ``both_ways``: the layers of the text model in which the tokens of a picture see all of it, and not only those
    before them; "windows" are those with a window. Towers rotate by row and column if ``tile_side``, the most patches
    of a tile's side, is not 0. The rows behind each of ``deepstack_layers`` become as many more features, which are
    added behind the first layers of the text model (DeepStack). ``mrope_section``: of the pairs that the text model's
    rotation has, those that turn by each of a token's three positions, interleaved (M-RoPE); empty if tokens have one
    position. ``bounded``: the inputs and outputs of its layers' projections have bounds. ``frames``: a patch of a
    video joins as many. `images.ImageSpec` says how pictures become patches.
    """

    model_type: str
    hidden_size: Count
    num_layers: Natural
    num_heads: Count
    intermediate_size: Count
    activation: str
    norm_eps: Positive
    patch_elements: Count
    positions: Count
    block: Count
    tile_patches: Count = 1
    projector_size: Count | None = None
    projector_activation: str = "none"
    projector_bias: bool = False
    projector_norm: bool = False
    projector_eps: Positive = 1e-5
    both_ways: Literal["none", "windows", "all"] = "none"
    tile_side: Natural = 0
    deepstack_layers: tuple[Natural, ...] = ()
    mrope_section: tuple[Natural, ...] = ()
    bounded: bool = False
    frames: Literal[1, 2] = 1

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class HearingSpec:
    """The tower of a model that hears, which makes features of frames of sound. ``model_type`` is that of the complete
    model; `arch/hearing` has one file for each.

    A row of the tower has ``row_elements`` numbers, those of the frames that become one feature, and a sound has at
    most ``sound_rows``, which the tower reads at once if it is ``whole``. Without layers, rows are only normed, with
    ``norm_eps``, and projected; others have the sizes of a Conformer: ``channels`` of its convolutions with strides,
    ``taps`` of that over rows, a ``window`` of rows that see those before them, with a ``softcap`` of scores, the
    factor ``residual`` of feed-forwards, and rows of ``output_size`` behind the last layer. ``bounded``: the inputs and
    outputs of its layers' projections have bounds. `sounds.SoundSpec` says how sound becomes frames.
    """

    model_type: str
    row_elements: Count
    sound_rows: Count = 1
    whole: bool = False
    norm_eps: Positive = 1e-6
    hidden_size: Count = 1
    num_layers: Natural = 0
    num_heads: Count = 1
    activation: str = "none"
    channels: tuple[Count, ...] = ()
    taps: Count = 1
    window: Count = 1
    softcap: Positive = 1.0
    residual: Positive = 1.0
    output_size: Count = 1
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class ReceptiveField:
    """A row of an encoder depends on itself, on ``back`` rows before it and on ``ahead`` later ones, in all layers."""

    back: Natural
    ahead: Natural


@dataclass(frozen=True, slots=True)
class AudioSpec:
    """The encoder of windows of sound to whose rows a decoder attends; `runtime/audio/windows.py` makes what it reads.

    A row has ``frames_of_row`` frames of ``frame_samples``, each ``hop_samples`` after the one before, and reads
    ``row_elements`` numbers. With ``mel_bins``, these are the energies of its frames and of those before and after
    them, and each window of a transcript has ``positions`` rows. With none, they are the samples from its first frame
    on, and a window has up to ``positions`` rows, of which the last ``rows_behind`` are only read by those before them.

    A row of layer l sees ``rows_back[l]`` rows, itself included, and ``rows_ahead[l]`` - 1 later ones; all, if these
    are empty. ``receptive_field`` is what that comes to in all layers, None if a row depends on its whole window.
    """

    mel_bins: Natural
    frame_samples: Count
    hop_samples: Count
    frames_of_row: Count
    row_elements: Count
    positions: Count
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    head_dim: Count
    intermediate_size: Count
    rows_behind: Natural = 0
    rows_back: tuple[Count, ...] = ()
    rows_ahead: tuple[Natural, ...] = ()
    receptive_field: ReceptiveField | None = None


@dataclass(frozen=True, slots=True)
class ConformerSpec:
    """What an encoder of sound has besides the layers of other encoders. A row reads ``frames`` of ``mel_bins``
    energies, through convolutions of ``channels`` that each halve time and bands. Layers have a convolution over
    ``size`` rows, an odd number. Gulati et al. 2020; Rekesh et al. 2023 (Fast Conformer).
    """

    mel_bins: Count
    frames: Count
    channels: Count
    size: Count


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder with grouped-query attention and a gated feed-forward, or an encoder. Sizes in elements.

    ``windows`` has one entry per layer: the number of tokens that a token sees, itself included, or None for all. It is
    empty if all layers see all tokens. ``activation`` is that of the gate, one of `ops.op.ACTIVATIONS`.

    Layers with a window rotate by ``window_rope`` unless it is None. The layers in ``unrotated`` do not rotate queries
    and keys. ``attention_scale`` None: 1 / sqrt(head_dim). A soft-cap c replaces x by c * tanh(x / c); None leaves x
    unchanged. The embedding is multiplied by ``embedding_scale``, the results of attention and feed-forward by
    ``residual_scale`` before they are added, and the logits by ``logit_scale`` before their soft-cap.

    Layers with a window have ``window_num_kv_heads`` of ``window_head_dim`` unless these are None. The last
    ``num_kv_shared_layers`` layers read the keys and values of an earlier one, and their feed-forward has
    ``shared_intermediate_size`` elements. Layers have a second embedding of ``per_layer_size`` elements for
    each of ``per_layer_vocab_size`` tokens; 0 if they have none. ``experts``: None if all layers are dense.

    ``causal``: a token sees no later one. If not, a window w restricts it to the tokens less than w away in both
    directions. Encoders may have a table of positions, whose row ``first_position`` is that of a text's first token,
    and embeddings of ``num_token_types`` types of tokens, such as those of a query and a passage. ``rms_norm_eps`` is
    that of their norms. Their tables have rows of ``embedding_size`` elements unless it is None. The rows of a model
    that makes vectors are projected to ``projected_size`` elements after the last norm unless it is None.
    ``distances``: None if scores do not depend on how far a key is from a row. ``convolution``: None if there is none.

    ``qkv_limit``: queries, keys and values are clipped to it, before the rotation. ``sinks``: each query head of a
    decoder has a sink; see `ops.attention`. ``keys_are_values``: the values of layers without a window are their keys
    before norm and rotation.

    ``mixers`` says what each layer mixes tokens with; empty if all have attention. ``states`` are the sizes of those
    with a state. ``draft_layers``: those of the heads with which the model drafts its own tokens, behind its layers.
    ``factors``: what the results of a layer's projections are multiplied by, by their modules; of rows
    from row r of a module on, by "module[r]". ``vision``: the tower of a model that sees pictures; None if it does not.
    ``hearing``: the tower of a model that hears, which makes features of sound; None if it does not. ``audio``: the
    encoder of sound beside the decoder; None if it has none. ``conformer``: what an encoder of sound has whose rows
    name tokens; None for other models.
    """

    model_type: str
    vocab_size: Count
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    intermediate_size: Count
    max_position_embeddings: Count
    rms_norm_eps: Positive
    rope: RopeSpec
    tie_word_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[Count | None, ...] = ()
    activation: str = "silu"
    window_rope: RopeSpec | None = None
    unrotated: tuple[Natural, ...] = ()
    attention_scale: Positive | None = None
    attention_softcap: Positive | None = None
    logit_softcap: Positive | None = None
    logit_scale: Positive = 1.0
    embedding_scale: Positive = 1.0
    residual_scale: Positive = 1.0
    window_head_dim: Count | None = None
    window_num_kv_heads: Count | None = None
    num_kv_shared_layers: Natural = 0
    shared_intermediate_size: Count | None = None
    per_layer_size: Natural = 0
    per_layer_vocab_size: Natural = 0
    experts: ExpertSpec | None = None
    causal: bool = True
    sinks: bool = False
    qkv_limit: Positive | None = None
    keys_are_values: bool = False
    first_position: Natural = 0
    num_token_types: Natural = 0
    embedding_size: Count | None = None
    projected_size: Count | None = None
    distances: DistanceSpec | None = None
    convolution: ConvolutionSpec | None = None
    mixers: tuple[Mixer, ...] = ()
    states: StateSpec | None = None
    draft_layers: Natural = 0
    factors: Mapping[str, float] = field(default_factory=dict)
    vision: VisionSpec | None = None
    hearing: HearingSpec | None = None
    audio: AudioSpec | None = None
    conformer: ConformerSpec | None = None
    bos_token_id: Natural | None = None
    eos_token_ids: tuple[Natural, ...] = ()

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def mixer(self, layer: int) -> Mixer:
        return self.mixers[layer] if self.mixers else "attention"

    @property
    def num_attention_layers(self) -> int:
        """The layers that attend, alone or beside a state."""
        return sum("attention" in self.mixer(layer) for layer in range(self.num_layers))

    @property
    def state_elements(self) -> int:
        """The elements of a sequence's states in all layers."""
        return sum(self.state_elements_of(layer) for layer in range(self.num_layers))

    def state_elements_of(self, layer: int) -> int:
        if self.states is None or self.mixer(layer) == "attention":
            return 0
        sizes = self.states
        channels = sizes.heads * sizes.value_dim + 2 * sizes.groups * sizes.key_dim
        matrix = sizes.heads * sizes.key_dim * sizes.value_dim
        return (sizes.taps - 1) * (channels if sizes.heads else self.hidden_size) + matrix

    def rope_of(self, layer: int) -> RopeSpec | None:
        """How a layer rotates queries and keys; None if it does not."""
        if layer in self.unrotated:
            return None
        return self.rope if self.window(layer) is None or self.window_rope is None else self.window_rope

    def heads_of(self, layer: int) -> tuple[int, int]:
        """A layer's number of kv heads and their size."""
        if self.window(layer) is None:
            return self.num_kv_heads, self.head_dim
        return self.window_num_kv_heads or self.num_kv_heads, self.window_head_dim or self.head_dim

    @property
    def kinds_of_heads(self) -> set[tuple[int, int]]:
        """The numbers and sizes of kv heads of all layers, including those of towers and of the encoder of sound."""
        kinds = {self.heads_of(layer) for layer in range(self.num_layers)}
        if self.vision is not None and self.vision.num_layers:
            kinds.add((self.vision.num_heads, self.vision.head_dim))
        if self.hearing is not None and self.hearing.num_layers:
            kinds.add((self.hearing.num_heads, self.hearing.hidden_size // self.hearing.num_heads))
        if self.audio is not None:
            kinds.add((self.audio.num_heads, self.audio.head_dim))
        return kinds

    @property
    def num_distances(self) -> int:
        """Those from a row to a key of the longest text, or to one that fills up a tile of keys."""
        return 2 * (self.max_position_embeddings + KEY_TILE) - 1

    @property
    def row_size(self) -> int:
        """The elements of a token's row, of which vectors are made."""
        return self.projected_size or self.hidden_size

    @property
    def feature_size(self) -> int:
        """The elements of a feature of pictures or sound, with those for further layers."""
        return self.hidden_size * (1 + (0 if self.vision is None else len(self.vision.deepstack_layers)))

    @property
    def largest_head_dim(self) -> int:
        return max(self.head_dim, self.window_head_dim or 0)

    def kv_layer(self, layer: int) -> int:
        """The layer whose keys and values a layer reads: itself, or the last one before the shared layers that has a
        window too, or none too.
        """
        first = self.num_layers - self.num_kv_shared_layers
        if layer < first:
            return layer
        kind = self.window(layer) is None
        return max(each for each in range(first) if (self.window(each) is None) == kind)

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer not in self.experts.dense_layers

    def intermediate_of(self, layer: int) -> int:
        shared = layer >= self.num_layers - self.num_kv_shared_layers
        return self.shared_intermediate_size or self.intermediate_size if shared else self.intermediate_size

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
