"""Reads the keys of config.json that Llama-like decoders share into a ModelSpec.

Defaults are those of transformers. A size without a safe default is required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ..formats.classifier import OF_TEXTS, OF_TOKENS
from ..formats.config import ConfigReader
from ..formats.harmless_keys import HARMLESS_KEYS
from ..ir.spec import ModelSpec, RopeSpec
from .rope_config import DEFAULT_ROPE_THETA, RopeSizes, longest_context, read_rope

# Far more than any decoder has. Specs list their layers, so an unlimited number could fill memory before weights are
# read.
MAX_LAYERS = 10_000

BiasKey = Literal["attention_bias", "mlp_bias"]

# The names of activations in config.json -> in `ops.op.ACTIVATIONS`.
ACTIVATION_NAMES = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip


def read_decoder_config(
    config: ConfigReader,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    activation: str | None = None,
    bias_keys: tuple[BiasKey, ...] = (),
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    windows: tuple[int | None, ...] = (),
    ropes: Mapping[str, RopeSpec] | None = None,
    rotates_parts: bool = False,
    rope_ignored: frozenset[str] = frozenset(),
    default_rotated: float = 1.0,
    default_theta: float = DEFAULT_ROPE_THETA,
    tied: bool = False,
    default_eps: float | None = None,
    eps_key: str = "rms_norm_eps",
    harmless: frozenset[str] = frozenset(),
) -> ModelSpec:
    """The spec of a decoder. The arguments are values that an architecture reads in its own way; without them, the keys
    are those of Llama.

    ``num_kv_heads`` None: 'num_key_value_heads', without it 'num_attention_heads'. ``head_dim`` None: 'head_dim',
    without it hidden_size / num_attention_heads. ``activation`` None: 'hidden_act', without it "silu". ``bias_keys``:
    the flags that the architecture has, of which 'attention_bias' is about all four projections of the attention;
    ``qkv_bias`` and the like are for other keys. ``ropes``: the rotation of "full_attention" and "sliding_attention",
    None if all layers have the one of 'rope_theta' and 'rope_parameters'. ``rotates_parts``: the architecture supports
    'partial_rotary_factor'; ``rope_ignored`` are keys of its section that do not matter. ``default_rotated``,
    ``default_theta``, ``tied`` and ``default_eps`` apply to absent keys. ``eps_key``: the key of the norms' epsilon.
    ``harmless``: the architecture's own keys that do not change the logits.

    Reads all keys and finishes the reader. Raises CheckpointError for wrong values, and UnsupportedModel for values
    that need mathematics that we do not compile.
    """
    _require_plain_decoder(config)
    model_type = config.text("model_type")
    hidden_size = config.integer("hidden_size")
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = num_kv_heads or config.optional_integer("num_key_value_heads") or num_heads
    flags = {key: config.flag(key, default=False) for key in bias_keys}
    vocab_size = config.integer("vocab_size")
    max_position_embeddings = config.integer("max_position_embeddings")
    require_shared_heads(config, num_heads, num_kv_heads)
    head_dim = even_head_dim(config, head_dim or config.optional_integer("head_dim"))
    sizes = RopeSizes(
        head_dim, max_position_embeddings, rotates_parts, default_rotated, default_theta, ignored=rope_ignored
    )
    window_rope = None if ropes is None or len(set(ropes.values())) == 1 else ropes["sliding_attention"]
    rope = read_rope(config, sizes) if ropes is None else ropes["full_attention"]
    max_position_embeddings = longest_context(config, rope, max_position_embeddings)
    # With false, transformers lets the tokens of any decoder see those after them.
    causal = config.flag("is_causal", default=True)
    if windows and not causal:
        raise config.unsupported("is_causal", "'is_causal' is false, which is not supported beside sliding windows")
    spec = ModelSpec(
        model_type=model_type,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=read_num_layers(config),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        max_position_embeddings=max_position_embeddings,
        rms_norm_eps=config.number(eps_key, default=default_eps),
        rope=rope,
        window_rope=window_rope,
        tie_word_embeddings=config.flag("tie_word_embeddings", default=tied),
        activation=activation or read_activation(config, "hidden_act", "silu"),
        qkv_bias=flags.get("attention_bias", qkv_bias),
        output_bias=flags.get("attention_bias", output_bias),
        mlp_bias=flags.get("mlp_bias", mlp_bias),
        qk_norm=qk_norm,
        windows=windows,
        causal=causal,
        bos_token_id=config.optional_integer("bos_token_id", minimum=0),
        eos_token_ids=config.token_ids("eos_token_id"),
    )
    _require_in_vocab(config, "bos_token_id", () if spec.bos_token_id is None else (spec.bos_token_id,), vocab_size)
    _require_in_vocab(config, "eos_token_id", spec.eos_token_ids, vocab_size)
    config.finish(HARMLESS_KEYS | harmless)
    return spec


def read_num_layers(config: ConfigReader, key: str = "num_hidden_layers") -> int:
    """Raises CheckpointError for more than MAX_LAYERS."""
    num_layers = config.integer(key)
    if num_layers > MAX_LAYERS:
        raise config.contradiction(key, f"{key!r} is {num_layers}; the maximum is {MAX_LAYERS}")
    return num_layers


def read_sliding_window(config: ConfigReader, *, default: int | None) -> tuple[int | None, ...]:
    """The window of every layer, from 'sliding_window': the number of tokens that a row sees, including its own.

    ``default`` is for an absent key.
    """
    window = config.optional_integer("sliding_window", absent=default)
    return () if window is None else (window,) * read_num_layers(config)


def read_layer_windows(config: ConfigReader) -> tuple[int | None, ...]:
    """The window of every layer, from the keys of Qwen2 and Qwen3; empty if no layer has one.

    'use_sliding_window' enables windows. 'layer_types', or without it 'max_window_layers', selects the layers that have
    one.
    """
    num_layers = read_num_layers(config)
    layer_types = listed_layer_types(config, num_layers, "full_attention", "sliding_attention")
    window = None
    if config.flag("use_sliding_window", default=False):
        # transformers' defaults for absent keys.
        window = config.optional_integer("sliding_window", absent=4096)
    config.ignore("sliding_window")
    first_layer = config.integer("max_window_layers", minimum=0, default=28)
    slides = [kind == "sliding_attention" for kind in layer_types] or [
        layer >= first_layer for layer in range(num_layers)
    ]
    if window is None and "sliding_attention" in layer_types:
        raise config.contradiction(
            "layer_types",
            "'layer_types' gives layers a sliding window, but 'use_sliding_window' and 'sliding_window' do not set its "
            "size",
        )
    return tuple(window if slide else None for slide in slides) if window is not None and any(slides) else ()


def accept_idle_window(config: ConfigReader) -> None:
    """Accept keys of sliding windows if they have no effect: no layer has a window, or it is as long as the context."""
    layer_types = listed_layer_types(config, read_num_layers(config), "full_attention")
    context = config.integer("max_position_embeddings")
    if layer_types or config.reaches("sliding_window", context):
        config.ignore("sliding_window", "max_window_layers")


def read_layer_types(config: ConfigReader, pattern: Callable[[int], bool]) -> tuple[str, ...]:
    """Whether each layer is "full_attention" or "sliding_attention", from 'layer_types'; without it, ``pattern`` says
    which layers are full.
    """
    num_layers = read_num_layers(config)
    kinds = listed_layer_types(config, num_layers, "full_attention", "sliding_attention")
    return kinds or tuple("full_attention" if pattern(layer) else "sliding_attention" for layer in range(num_layers))


def windows_of(config: ConfigReader, kinds: Sequence[str], window: int | None) -> tuple[int | None, ...]:
    """The window of every layer; empty if no layer has one. Raises CheckpointError if a layer needs one and
    'sliding_window' is null.
    """
    if "sliding_attention" not in kinds:
        return ()
    if window is None:
        raise config.contradiction(
            "sliding_window", "'sliding_window' is null, but 'layer_types' gives layers a sliding window"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def read_activation(config: ConfigReader, key: str, default: str) -> str:
    """The activation of the gate, by its name in `ops.op.ACTIVATIONS`."""
    name = config.text(key, default=default)
    if name not in ACTIVATION_NAMES:
        known = ", ".join(map(repr, ACTIVATION_NAMES))
        raise config.unsupported(key, f"{key!r} is {name!r}, which is not supported; supported: {known}")
    return ACTIVATION_NAMES[name]


def listed_layer_types(config: ConfigReader, num_layers: int, *supported: str) -> tuple[str, ...]:
    """'layer_types', whose entries must be ``supported``; empty if absent."""
    layer_types = config.texts("layer_types")
    unknown = next((kind for kind in layer_types if kind not in supported), None)
    if unknown is not None:
        known = ", ".join(map(repr, supported))
        raise config.unsupported(
            "layer_types", f"'layer_types' holds {unknown!r}, which is not supported; supported: {known}"
        )
    if layer_types and len(layer_types) != num_layers:
        raise config.contradiction(
            "layer_types", f"'layer_types' has {len(layer_types)} entries for {num_layers} layers ('num_hidden_layers')"
        )
    return layer_types


def _require_plain_decoder(config: ConfigReader) -> None:
    architectures = config.texts("architectures")
    # Embedding models may be saved without a head, as "Qwen3Model". "Qwen2ForRewardModel" is another kind of model.
    if architectures and not any(
        name.endswith(("ForCausalLM", OF_TEXTS, OF_TOKENS)) or (name.endswith("Model") and "For" not in name)
        for name in architectures
    ):
        raise config.unsupported(
            "architectures",
            f"'architectures' is {list(architectures)}, not a language model ('...ForCausalLM'), nor a classifier "
            f"('...{OF_TEXTS}', '...{OF_TOKENS}')",
        )
    config.expect("rope_interleaved", False)
    config.expect("use_mrope", False)
    config.expect("is_encoder_decoder", False)
    config.expect("add_cross_attention", False)
    config.expect("cross_attention_hidden_size", None)
    config.expect("pruned_heads", {}, None)


def require_shared_heads(config: ConfigReader, num_heads: int, num_kv_heads: int) -> None:
    """Raises CheckpointError unless as many heads share each head of keys and values."""
    if num_heads % num_kv_heads:
        raise config.contradiction(
            "num_key_value_heads",
            f"'num_attention_heads' is {num_heads}, not a multiple of 'num_key_value_heads', which is {num_kv_heads}",
        )


def even_head_dim(config: ConfigReader, head_dim: int | None) -> int:
    """The head size; None: hidden_size / num_attention_heads. Raises UnsupportedModel if it is odd."""
    if head_dim is None:
        hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        if hidden_size % num_heads:
            raise config.contradiction(
                "hidden_size",
                f"'hidden_size' is {hidden_size}, not a multiple of 'num_attention_heads', which is {num_heads}",
            )
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise config.unsupported("head_dim", f"'head_dim' is {head_dim}; rotary position embedding needs an even size")
    return head_dim


def _require_in_vocab(config: ConfigReader, key: str, ids: tuple[int, ...], vocab_size: int) -> None:
    for token_id in ids:
        if token_id >= vocab_size:
            raise config.contradiction(
                key, f"{key!r} is {token_id}, outside of the vocabulary of {vocab_size} ('vocab_size')"
            )
