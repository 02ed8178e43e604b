"""Reads the rotary position embedding of config.json into a RopeSpec.

Both spellings are supported: `rope_theta` with `rope_scaling` (transformers up to 4) and `rope_parameters`
(transformers 5). Defaults are those of transformers.
"""

from __future__ import annotations

from dataclasses import replace

from ..formats.config import ConfigReader
from ..ir.spec import RopeSpec

# transformers' default if neither spelling has a value.
DEFAULT_ROPE_THETA = 10000.0


def read_rope(config: ConfigReader, head_dim: int, max_position_embeddings: int, *, rotates_parts: bool) -> RopeSpec:
    """The rotation. With ``rotates_parts``, 'partial_rotary_factor' may rotate a part of each head; otherwise it must
    be 1.
    """
    theta = config.optional_number("rope_theta")
    factor = _rotated_factor(config, rotates_parts=rotates_parts)
    readings = [
        _read_rope_section(section, theta, factor, head_dim, max_position_embeddings, rotates_parts=rotates_parts)
        for section in (config.section("rope_parameters"), config.section("rope_scaling"))
        if section is not None
    ]
    if len(readings) == 2 and readings[0] != readings[1]:
        raise config.contradiction("rope_scaling", "'rope_parameters' and 'rope_scaling' disagree")
    if readings:
        return readings[0]
    return RopeSpec(theta=theta or DEFAULT_ROPE_THETA, rotary_dim=_rotary_dim(config, factor, head_dim))


def _rotated_factor(config: ConfigReader, *, rotates_parts: bool) -> float | None:
    if not rotates_parts:
        config.expect("partial_rotary_factor", 1, None)
        return None
    return config.optional_number("partial_rotary_factor")


def _rotary_dim(config: ConfigReader, factor: float | None, head_dim: int) -> int | None:
    """The number of elements of a head that are rotated; None for all of them."""
    rotated = int(head_dim * (1 if factor is None else factor))
    if not 0 < rotated <= head_dim or rotated % 2:
        raise config.unsupported(
            "partial_rotary_factor",
            f"'partial_rotary_factor' is {factor}, which rotates {rotated} of a head's {head_dim} elements; "
            "their number must be even",
        )
    return None if rotated == head_dim else rotated


def _read_rope_section(
    section: ConfigReader,
    outer_theta: float | None,
    outer_factor: float | None,
    head_dim: int,
    max_position_embeddings: int,
    *,
    rotates_parts: bool,
) -> RopeSpec:
    inner_theta = section.optional_number("rope_theta")
    if inner_theta is not None and outer_theta is not None and inner_theta != outer_theta:
        raise section.contradiction(
            "rope_theta", f"'rope_theta' is {inner_theta} here and {outer_theta} at the top of the file"
        )
    theta = inner_theta or outer_theta or DEFAULT_ROPE_THETA
    inner_factor = _rotated_factor(section, rotates_parts=rotates_parts)
    factor = outer_factor if inner_factor is None else inner_factor
    if None not in (inner_factor, outer_factor) and inner_factor != outer_factor:
        raise section.contradiction(
            "partial_rotary_factor",
            f"'partial_rotary_factor' is {inner_factor} here and {outer_factor} at the top of the file",
        )
    kind = _rope_type(section)
    if kind == "default":
        rope = RopeSpec(theta=theta)
    elif kind == "linear":
        rope = RopeSpec(theta=theta, scaling="linear", factor=section.number("factor"))
    elif kind == "llama3":
        rope = RopeSpec(
            theta=theta,
            scaling="llama3",
            factor=section.number("factor"),
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
            original_max_position_embeddings=section.integer(
                "original_max_position_embeddings", default=max_position_embeddings
            ),
        )
        if rope.high_freq_factor <= rope.low_freq_factor:
            raise section.contradiction(
                "high_freq_factor",
                f"'high_freq_factor' is {rope.high_freq_factor}, not above 'low_freq_factor', "
                f"which is {rope.low_freq_factor}",
            )
    else:
        raise section.unsupported(
            "rope_type", f"RoPE type {kind!r} is not supported; supported: default, linear, llama3"
        )
    section.finish()
    return replace(rope, rotary_dim=_rotary_dim(section, factor, head_dim))


def _rope_type(section: ConfigReader) -> str:
    new, old = section.optional_text("rope_type"), section.optional_text("type")
    if new is not None and old is not None and new != old:
        # Multimodal models write type "mrope" beside rope_type "default".
        raise section.unsupported(
            "type", f"RoPE type {old!r} beside {new!r} is not supported; supported: default, linear, llama3"
        )
    return new or old or "default"
