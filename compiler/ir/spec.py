"""ModelSpec: the normalised hyper-parameters of a decoder, whatever file format they came from.

Formats (`formats/`) find a checkpoint's configuration, and an architecture (`arch/`) turns it into a ModelSpec. Later
stages never read the original keys. A ModelSpec is data: a bundle's manifest stores it as JSON, field by field.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding of the rotate-half form. Su et al. 2021; "llama3" scaling as in Llama 3.1.

    "linear" divides all frequencies by ``factor``; "llama3" divides the low ones and blends in between, by wavelength
    against ``original_max_position_embeddings``. ``rotary_dim`` elements of each head are rotated, None for all of
    them.
    """

    theta: float
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 0
    rotary_dim: int | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A pre-norm decoder with grouped-query attention and a gated feed-forward. Sizes in elements.

    ``windows`` has one entry per layer: the number of tokens that a token sees, itself included, or None for all. It is
    empty if all layers see all tokens. ``activation`` is that of the gate, one of `ops.op.ACTIVATIONS`.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()
    activation: str = "silu"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EmbeddingSpec:
    """How to compute a text's vector from the rows of the final norm: use the row of the last token, scaled to length 1
    if ``normalize``.
    """

    pooling: Literal["last_token"]
    normalize: bool
