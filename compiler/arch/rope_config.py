"""Reads the rotary position embedding of config.json into a RopeSpec.

Both spellings are supported: `rope_theta` with `rope_scaling` (transformers up to 4) and `rope_parameters`
(transformers 5), which may have one section per type of layer. Defaults are those of transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec, RopeSpec

# transformers' default if neither spelling has a value.
DEFAULT_ROPE_THETA = 10000.0
SCALINGS = ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")
# Older names of the same scaling.
ALIASES = {"su": "longrope"}


@dataclass(frozen=True, slots=True)
class RopeSizes:
    """The values besides its own keys on which a rotation depends. ``rotates_parts``: 'partial_rotary_factor' may
    rotate a part of each head; otherwise it must be 1. ``default_rotated`` and ``default_theta`` apply to absent keys.
    ``reads_alpha``: a "dynamic" section with 'alpha' multiplies theta, for all lengths alike. ``scales_queries``:
    'llama_4_scaling_beta' scales queries beyond the original length. ``ignored``: keys of the section that do not
    matter.
    """

    head_dim: int
    max_position_embeddings: int
    rotates_parts: bool = False
    default_rotated: float = 1.0
    default_theta: float = DEFAULT_ROPE_THETA
    reads_alpha: bool = False
    scales_queries: bool = False
    ignored: frozenset[str] = frozenset()


def read_rope(config: ConfigReader, sizes: RopeSizes) -> RopeSpec:
    """The rotation of all layers."""
    theta = config.optional_number("rope_theta")
    factor = _rotated_factor(config, sizes)
    # Phi-3 stores the original length beside the section, where it takes precedence.
    original = config.optional_integer("original_max_position_embeddings")
    readings = [_read_section(section, sizes, theta, factor, original) for section in rope_sections(config)]
    if len(readings) == 2 and readings[0] != readings[1]:
        raise config.contradiction("rope_scaling", "'rope_parameters' and 'rope_scaling' disagree")
    if readings:
        return readings[0]
    return RopeSpec(theta=theta or sizes.default_theta, rotary_dim=_rotary_dim(config, factor, sizes))


def rope_sections(config: ConfigReader) -> list[ConfigReader]:
    """Those of the two spellings that are present. transformers 5 reads an empty 'rope_scaling' as an absent one."""
    new, old = config.section("rope_parameters"), config.section("rope_scaling")
    return [section for section in (new, old if old is not None and old.keys() else None) if section is not None]


def longest_context(config: ConfigReader, rope: RopeSpec, positions: int) -> int:
    """The longest sequence of a model with ``positions`` in 'max_position_embeddings'. With dynamic RoPE and YaRN, the
    factor stretches the original length, which some files leave in that key, as Qwen2.5's model card instructs.
    """
    if rope.scaling not in ("dynamic", "yarn"):
        return positions
    stretched = rope.factor * rope.original_max_position_embeddings
    if stretched > 2**53:
        raise config.contradiction(
            "rope_scaling",
            f"'factor' {rope.factor} stretches {rope.original_max_position_embeddings} positions too far",
        )
    return max(positions, int(stretched))


def read_layer_ropes(config: ConfigReader, full: RopeSizes, sliding: RopeSizes) -> dict[str, RopeSpec]:
    """The rotations of "full_attention" and "sliding_attention" layers: 'rope_parameters' has a section for each. In
    the older spelling, 'rope_theta' and 'rope_scaling' are those of full layers, and the others have the plain rotation
    with the default theta of ``sliding``.
    """
    kinds = {"full_attention": full, "sliding_attention": sliding}
    sections = config.section("rope_parameters")
    if sections is None or not any(map(sections.has, kinds)):
        return {
            "full_attention": read_rope(config, full),
            "sliding_attention": RopeSpec(theta=sliding.default_theta),
        }
    ropes = {}
    for kind, sizes in kinds.items():
        section = sections.section(kind)
        plain = RopeSpec(theta=sizes.default_theta)
        ropes[kind] = plain if section is None else _read_section(section, sizes, None, None, None)
    sections.finish()
    # transformers 5 reads no older key if there are sections.
    config.ignore("rope_theta", "rope_scaling")
    return ropes


def with_layer_thetas(config: ConfigReader, spec: ModelSpec, thetas: tuple[float, ...] | None) -> ModelSpec:
    """The spec of a model whose 'layer_rope_theta' are these; a layer with 0 does not rotate. All layers with a window
    must have one theta, and so must all others.
    """
    if thetas is None:
        return spec
    if len(thetas) != spec.num_layers:
        raise config.contradiction(
            "layer_rope_theta", f"'layer_rope_theta' has {len(thetas)} entries for {spec.num_layers} layers"
        )
    by_kind: dict[bool, set[float]] = {False: set(), True: set()}
    for layer, theta in enumerate(thetas):
        by_kind[spec.window(layer) is not None] |= {theta} - {0}
    if any(len(found) > 1 for found in by_kind.values()):
        raise config.unsupported(
            "layer_rope_theta", "'layer_rope_theta' gives layers of the same kind ('layer_types') different thetas"
        )
    full, local = (next(iter(by_kind[kind]), spec.rope.theta) for kind in (False, True))
    return replace(
        spec,
        rope=replace(spec.rope, theta=full),
        window_rope=None if full == local else replace(spec.rope, theta=local),
        unrotated=tuple(layer for layer, theta in enumerate(thetas) if theta == 0),
    )


def _rotated_factor(config: ConfigReader, sizes: RopeSizes) -> float | None:
    if not sizes.rotates_parts:
        config.expect("partial_rotary_factor", 1, None)
        return None
    return config.optional_number("partial_rotary_factor")


def _rotary_dim(config: ConfigReader, factor: float | None, sizes: RopeSizes) -> int | None:
    """The number of elements of a head that are rotated; None for all of them."""
    factor = sizes.default_rotated if factor is None else factor
    rotated = int(sizes.head_dim * factor)
    if not 0 < rotated <= sizes.head_dim or rotated % 2:
        raise config.unsupported(
            "partial_rotary_factor",
            f"'partial_rotary_factor' is {factor}, which rotates {rotated} of a head's {sizes.head_dim} elements; "
            "their number must be even",
        )
    return None if rotated == sizes.head_dim else rotated


def _read_section(
    section: ConfigReader,
    sizes: RopeSizes,
    outer_theta: float | None,
    outer_factor: float | None,
    outer_original: int | None,
) -> RopeSpec:
    inner_theta = section.optional_number("rope_theta")
    if inner_theta is not None and outer_theta is not None and inner_theta != outer_theta:
        raise section.contradiction(
            "rope_theta", f"'rope_theta' is {inner_theta} here and {outer_theta} at the top of the file"
        )
    kind = _rope_type(section)
    inner_factor = _rotated_factor(section, replace(sizes, rotates_parts=True) if kind == "proportional" else sizes)
    factor = outer_factor if inner_factor is None else inner_factor
    if None not in (inner_factor, outer_factor) and inner_factor != outer_factor:
        raise section.contradiction(
            "partial_rotary_factor",
            f"'partial_rotary_factor' is {inner_factor} here and {outer_factor} at the top of the file",
        )
    rope = RopeSpec(theta=inner_theta or outer_theta or sizes.default_theta)
    if kind == "linear":
        rope = replace(rope, scaling="linear", factor=section.number("factor"))
    elif kind == "llama3":
        rope = _read_llama3(section, rope, _original_length(section, sizes, outer_original))
    elif kind == "yarn":
        rope = _read_yarn(section, rope, _original_length(section, sizes, outer_original))
    elif kind == "longrope":
        rope = _read_longrope(section, rope, sizes, _original_length(section, sizes, outer_original), factor)
    elif kind == "dynamic" and sizes.reads_alpha and (alpha := section.optional_number("alpha")) is not None:
        rope = replace(rope, theta=rope.theta * alpha ** (sizes.head_dim / (sizes.head_dim - 2)))
        # The factors of other scalings, which this one does not read.
        section.ignore("beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim")
    elif kind == "dynamic":
        rope = replace(
            rope,
            scaling="dynamic",
            factor=section.number("factor"),
            original_max_position_embeddings=sizes.max_position_embeddings,
        )
        section.ignore("original_max_position_embeddings")
    elif kind == "proportional":
        rope = replace(rope, scaling="proportional", factor=section.number("factor", default=1.0))
    if sizes.scales_queries:
        rope = _with_query_scale(section, rope)
    section.finish(sizes.ignored)
    return replace(rope, rotary_dim=_rotary_dim(section, factor, sizes))


def _with_query_scale(section: ConfigReader, rope: RopeSpec) -> RopeSpec:
    beta = section.number("llama_4_scaling_beta", or_zero=True)
    if beta and not rope.original_max_position_embeddings:
        raise section.contradiction(
            "llama_4_scaling_beta", f"'llama_4_scaling_beta' is {beta}, but RoPE type 'yarn' has the original length"
        )
    return replace(rope, query_beta=beta)


def _original_length(section: ConfigReader, sizes: RopeSizes, outer: int | None) -> int:
    inner = section.optional_integer("original_max_position_embeddings")
    return outer or inner or sizes.max_position_embeddings


def _read_llama3(section: ConfigReader, rope: RopeSpec, original: int) -> RopeSpec:
    rope = replace(
        rope,
        scaling="llama3",
        factor=section.number("factor"),
        low_freq_factor=section.number("low_freq_factor"),
        high_freq_factor=section.number("high_freq_factor"),
        original_max_position_embeddings=original,
    )
    if rope.high_freq_factor <= rope.low_freq_factor:
        raise section.contradiction(
            "high_freq_factor",
            f"'high_freq_factor' is {rope.high_freq_factor}, not above 'low_freq_factor', "
            f"which is {rope.low_freq_factor}",
        )
    return rope


def _read_yarn(section: ConfigReader, rope: RopeSpec, original: int) -> RopeSpec:
    factor = section.number("factor")
    scale, mscale, all_dims = (section.optional_number(key) for key in ("attention_factor", "mscale", "mscale_all_dim"))
    if scale is None:
        both = mscale is not None and all_dims is not None
        scale = _mscale(factor, mscale or 1) / _mscale(factor, all_dims or 1) if both else _mscale(factor, 1)
    return replace(
        rope,
        scaling="yarn",
        factor=factor,
        attention_factor=scale,
        beta_fast=section.optional_number("beta_fast") or 32.0,
        beta_slow=section.optional_number("beta_slow") or 1.0,
        truncate=section.flag("truncate", default=True),
        original_max_position_embeddings=original,
    )


def _mscale(factor: float, mscale: float) -> float:
    """The factor of attention that compensates for longer contexts. Peng et al. 2023."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _read_longrope(
    section: ConfigReader, rope: RopeSpec, sizes: RopeSizes, original: int, rotated_factor: float | None
) -> RopeSpec:
    num_pairs = int(sizes.head_dim * (sizes.default_rotated if rotated_factor is None else rotated_factor)) // 2
    lists = {}
    for key in ("short_factor", "long_factor"):
        lists[key] = section.numbers(key)
        if len(lists[key]) != num_pairs:
            raise section.contradiction(
                key, f"{key!r} has {len(lists[key])} entries; the rotated part of a head has {num_pairs} pairs"
            )
    factor = section.optional_number("factor") or sizes.max_position_embeddings / original
    scale = section.optional_number("attention_factor")
    if original == 1:
        raise section.contradiction(
            "original_max_position_embeddings", "'original_max_position_embeddings' is 1; expected at least 2"
        )
    if scale is None:
        scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return replace(
        rope,
        scaling="longrope",
        factor=factor,
        attention_factor=scale,
        original_max_position_embeddings=original,
        short_factors=lists["short_factor"],
        long_factors=lists["long_factor"],
    )


def _rope_type(section: ConfigReader) -> str:
    new, old = section.optional_text("rope_type"), section.optional_text("type")
    new, old = (ALIASES.get(name, name) if name else name for name in (new, old))
    if new is not None and old is not None and new != old:
        # Multimodal models write type "mrope" beside rope_type "default".
        raise section.unsupported(
            "type", f"RoPE type {old!r} beside {new!r} is not supported; supported: {', '.join(SCALINGS)}"
        )
    kind = new or old or "default"
    if kind not in SCALINGS:
        raise section.unsupported("rope_type", f"RoPE type {kind!r} is not supported; supported: {', '.join(SCALINGS)}")
    return kind
