"""Reads the section `quant_method: "compressed-tensors"` of config.json, which defines the storage of each module
(vllm-project/compressed-tensors, quantization/quant_config.py, quant_scheme.py and utils/match.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..runtime.errors import UnsupportedModel
from .config import ConfigReader
from .gemma_quant import is_embedding
from .scale_grid import WHOLE

METHOD = "compressed-tensors"
PACKED, INTEGERS, FLOATS, NAIVE = "pack-quantized", "int-quantized", "float-quantized", "naive-quantized"
MXFP8, MXFP4, NVFP4 = "mxfp8-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized"
# The type and bits of the weights in each format; None: any number of bits.
FORMATS: Mapping[str, tuple[tuple[str, int | None], ...]] = {
    PACKED: (("int", None),),
    INTEGERS: (("int", None),),
    FLOATS: (("float", 8),),
    NAIVE: (("int", None), ("float", 8)),
    MXFP8: (("float", 8),),
    MXFP4: (("float", 4),),
    NVFP4: (("float", 4),),
}
REGEX = "re:"
# Keys that do not change the weights.
IGNORED = ("global_compression_ratio", "quantization_status", "version")
IGNORED_OF_WEIGHTS = ("actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype")


@dataclass(frozen=True, slots=True)
class Scheme:
    """The storage of the weights of a group's modules. ``block``: the rows and columns that share a scale."""

    group: str
    format: str
    type: str
    bits: int
    symmetric: bool
    block: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Schemes:
    """``targets``: names of modules, regular expressions or classes of modules, with their scheme; None: floats."""

    where: str
    targets: Mapping[str, Scheme | None]
    ignored: tuple[str, ...]
    rounds_activations: bool
    rounds_cache: bool

    def scheme_of(self, module: str) -> Scheme | None:
        """The scheme of a module; None if its weights are floats. As in the library, names take precedence over regular
        expressions, and these over classes.
        """
        if any(matches_name(target, module) or target == class_of(module) for target in self.ignored):
            return None
        in_order = sorted(self.targets, key=lambda target: (REGEX in target, target))
        target = next((target for target in in_order if matches_name(target, module)), class_of(module))
        return self.targets.get(target)

    def require_matches(self, modules: Iterable[str]) -> None:
        """Raise UnsupportedModel for a group whose targets match none of the modules."""
        names = list(modules)
        groups: dict[str, list[str]] = {}
        for target, scheme in self.targets.items():
            if scheme is not None:
                groups.setdefault(scheme.group, []).append(target)
        for group, targets in groups.items():
            if not any(matches_name(target, name) or target == class_of(name) for target in targets for name in names):
                raise UnsupportedModel(
                    f"{self.where}: config_groups: {group}: 'targets' {targets} match no module with weights; names of "
                    "modules, regular expressions with 're:', and the classes Linear and Embedding are supported",
                    key="targets",
                    group=group,
                )


def class_of(module: str) -> str:
    return "Embedding" if is_embedding(module) else "Linear"


def matches_name(target: str, module: str) -> bool:
    if target.startswith(REGEX):
        return re.match(target.removeprefix(REGEX), module) is not None
    return target == module


def read_schemes(config: ConfigReader) -> Schemes:
    """The section ``quantization_config``. Raises CheckpointError for a damaged one, UnsupportedModel for a format or a
    key that is not supported.
    """
    # In some versions, the section contains another section, beside that of sparsity.
    inner = config.section("quantization_config") or config
    for outer in (config, inner):
        _refuse_sparsity(outer)
        _refuse_transforms(outer)
        outer.expect("quant_method", METHOD)
        outer.ignore("quant_method", *IGNORED)
    groups = inner.section("config_groups")
    common = inner.text("format", default="dense")
    targets: dict[str, Scheme | None] = {}
    rounds_activations = False
    for name in groups.keys() if groups is not None else ():
        group = None if groups is None else groups.section(name)
        if group is None:
            continue
        weights = group.section("weights")
        scheme = None
        if weights is not None:
            scheme = _read_scheme(name, group.optional_text("format") or common, weights)
            rounds_activations |= any(group.section(f"{kind}_activations") for kind in ("input", "output"))
        # Groups without weights only round activations.
        group.ignore("format", "input_activations", "output_activations")
        for target in group.texts("targets"):
            _require_pattern(group, "targets", target)
            targets[target] = scheme
        group.finish()
    ignored = inner.texts("ignore")
    for target in ignored:
        _require_pattern(inner, "ignore", target)
    rounds_cache = inner.section("kv_cache_scheme") is not None
    for each in (config, inner):
        each.finish()
    return Schemes(inner.where, targets, ignored, rounds_activations, rounds_cache)


def _read_scheme(group: str, format_: str, weights: ConfigReader) -> Scheme:
    if format_ not in FORMATS:
        raise weights.unsupported(
            "format", f"'format' is {format_!r}, which is not supported; supported: {', '.join(FORMATS)}"
        )
    type_, bits = weights.text("type", default="int").lower(), weights.integer("num_bits", default=8)
    if not any(type_ == each and width in (None, bits) for each, width in FORMATS[format_]) or bits > 8:
        raise weights.unsupported("num_bits", f"weights of type {type_!r} with {bits} bits in format {format_!r}")
    symmetric = weights.flag("symmetric", default=True)
    if type_ == "float" and not symmetric:
        raise weights.unsupported("symmetric", "floats with zero points are not supported")
    weights.expect("dynamic", False)
    weights.ignore("dynamic", *IGNORED_OF_WEIGHTS)
    scheme = Scheme(group, format_, type_, bits, symmetric, _read_block(weights))
    weights.finish()
    return scheme


def _read_block(weights: ConfigReader) -> tuple[int, int]:
    size = weights.optional_integer("group_size", minimum=-1)
    strategy = weights.optional_text("strategy")
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    weights.ignore("block_structure")
    match strategy.lower():
        case "tensor":
            return WHOLE, WHOLE
        case "channel":
            return 1, WHOLE
        case "group" | "tensor_group" if size is not None and size > 0:
            return 1, size
        case "block":
            block = weights.integers("block_structure")
            if block is None or len(block) != 2 or min(block) < 1:
                raise weights.contradiction("block_structure", "'block_structure' must be two sizes")
            return block[0], block[1]
    raise weights.unsupported("strategy", f"'strategy' is {strategy!r} with 'group_size' {size}, which is unknown")


def _refuse_sparsity(config: ConfigReader) -> None:
    sparsity = config.section("sparsity_config")
    if sparsity is not None:
        # "dense": zeros are stored like all other weights.
        sparsity.expect("format", "dense")
    config.ignore("sparsity_config")


def _refuse_transforms(config: ConfigReader) -> None:
    transforms = config.section("transform_config")
    if transforms is not None and (groups := transforms.section("config_groups")) is not None and groups.keys():
        raise config.unsupported(
            "transform_config", f"'transform_config' rotates activations ({', '.join(groups.keys())}), not supported"
        )


def _require_pattern(config: ConfigReader, key: str, target: str) -> None:
    if not target.startswith(REGEX):
        return
    try:
        re.compile(target.removeprefix(REGEX))
    except re.error as error:
        raise config.contradiction(key, f"{key!r}: {target!r} is not a regular expression: {error}") from error
