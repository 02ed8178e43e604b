"""Checks that all numbers and names of a manifest agree with each other, before anything is mapped or allocated.

`manifest.py` defines the keys and their types; this file checks the relations between them. `check_description.py`
checks what describes the model, `check_steps.py` the steps, `check_kernels.py` their kernels, and `check_tests.py` the
bundle's tests. A kernel of a CPU or CUDA bundle is native code, and no check makes native code safe; see
`signature.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from pydantic_core import from_json

from .. import quant
from ..ir.expr import COMPARISONS, MAX_COUNT, MAX_INTEGER, OPERATORS, Condition, Expr
from ..names import EXPORTS
from ..quant.dense import Dense
from ..quant.layout import stored_shape
from ..runtime.errors import BundleError, QuantizationError
from ..runtime.page_groups import group_windows, live_pages, pages_bytes
from .check_description import check_description
from .check_steps import check_steps
from .check_tests import check_feature_test, check_self_test, check_vector_test
from .entries import FileEntry, LoraEntry, WeightEntry, shards_of
from .fault import Fault, require
from .manifest import (
    AUDIO,
    ENCODERS,
    FORMAT_VERSION,
    HEARING,
    MANIFEST_FILE,
    VISION,
    Description,
    ExportManifest,
    Manifest,
)

# Levels of nested expressions. The largest that we write has one level for each kernel that shares a buffer.
MAX_DEPTH = 100
# Kernels load complete vectors, and some GPUs can bind buffers only at multiples of this offset.
PLANE_ALIGNMENT = 256
# The number of 32-bit integers of a kernel's uniforms. Those of all kernels are in one buffer, 256 bytes apart.
MAX_UNIFORMS = 64
# More than any GPU has for one workgroup.
MAX_SHARED_BYTES = 256 << 10
ADVICE = "; compile the bundle again"
DIMS = frozenset((*"SBRTLPNMAWGZHVIFC", "LW", "PW", "DR", "PD", "PH", "LS", "PS"))


def manifest_file(manifest: Description, indent: int | None = None) -> bytes:
    """What a compiler writes into manifest.json. Raises BundleError for a manifest that could not be opened again."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(manifest.model_dump(mode="json"), indent=indent, separators=separators, ensure_ascii=False)
    data = text.encode()
    try:
        parse_manifest(data, Path(MANIFEST_FILE))
    except BundleError as error:
        fault = str(error).removesuffix(ADVICE)
        raise BundleError(
            f"{fault}; this is a fault of the compiler: please report it with the model's name"
        ) from error
    return data


def parse_manifest(data: bytes, file: Path) -> Manifest | ExportManifest:
    """The manifest in ``data``, the bytes of ``file``. Raises BundleError for every defect."""
    try:
        parsed = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise BundleError(f"{file}: cannot be read: {error}{ADVICE}") from error
    version = parsed.get("format_version") if isinstance(parsed, dict) else None
    if version != FORMAT_VERSION:
        raise BundleError(f"{file}: has format version {version}, but this nearfar reads {FORMAT_VERSION}{ADVICE}")
    model = ExportManifest if parsed.get("target") in EXPORTS else Manifest
    try:
        # Validate the JSON text, because a strict check of Python values would require tuples where JSON has lists.
        manifest = model.model_validate_json(data, strict=True)
        check_manifest(manifest)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        found = "" if isinstance(first["input"], dict | list) else f", not {first['input']!r:.80}"
        raise BundleError(f"{file}: {where}: {first['msg']}{found}{ADVICE}") from error
    except Fault as fault:
        raise BundleError(f"{file}: {fault}{ADVICE}") from fault
    return manifest


def check_manifest(manifest: Manifest | ExportManifest) -> None:
    """Raises Fault."""
    check_description(manifest)
    if isinstance(manifest, ExportManifest):
        require(manifest.page_size == manifest.context, "page_size", "must be the context")
        quantization_of(manifest.quantization, manifest.group_size)
        check_files(manifest.files)
        ending = {"onnx": ".onnx", "mlx": ".safetensors"}[manifest.target]
        require(any(entry.file.endswith(ending) for entry in manifest.files), "files", f"has no {ending} file")
        return
    require(manifest.target not in EXPORTS, "target", f"{manifest.target!r} has no plan")
    check_files((*manifest.shards, *manifest.files), kernel_files(manifest))
    quantization_of(manifest.quantization)
    encoders = [manifest.plans[name] for name in ENCODERS if name in manifest.plans]
    of_encoder = {name for plan in encoders for step in plan.steps for name in step.inputs.values()}
    for name, weight in manifest.weights.items():
        check_weight(f"weights.{name}", weight, manifest, other_bits=name in of_encoder)
    for name, weight in manifest.host_weights.items():
        check_weight(f"host_weights.{name}", weight, manifest)
        is_table = len(weight.shape) == 2 and weight.layout == "rows"
        require(is_table, f"host_weights.{name}", "must be a matrix with the layout rows")
    shared = shards_of(manifest.host_weights) & shards_of(manifest.weights)
    require(not shared, "shards", f"{sorted(shared)[:1]} has weights of the host and of the device")
    for plan_name, plan in manifest.plans.items():
        for table in (plan.inputs, plan.states, plan.buffers):
            for name, entry in table.items():
                for size in entry.shape:
                    check_size(f"plans.{plan_name}.{name}", size)
        for name, constant in plan.constants.items():
            shape = [constant.shape[0] if constant.shape else 0, len(constant.inverse_frequencies), 2]
            require(
                constant.shape == shape, f"constants.{name}", f"has shape {constant.shape}; its values make {shape}"
            )
            # Otherwise a table of many positions and pairs would be computed before another check refuses it.
            audio = manifest.spec.audio if plan_name == AUDIO else None
            require(
                shape[0] <= (manifest.spec.max_position_embeddings if audio is None else audio.positions),
                f"constants.{name}",
                "is longer than the model's positions",
            )
            require(2 * shape[1] <= manifest.spec.largest_head_dim, f"constants.{name}", "rotates more than a head")
    for name, entry in manifest.scratch.items():
        for size in entry.shape:
            check_size(f"scratch.{name}", size)
    for name, kernel in manifest.kernels.items():
        require(len(kernel.grid) == 2, f"kernels.{name}", "must have a grid of two sizes")
        require(
            len(kernel.uniforms) <= MAX_UNIFORMS,
            f"kernels.{name}",
            f"has {len(kernel.uniforms)} uniforms; the maximum is {MAX_UNIFORMS}",
        )
        require(
            1 <= kernel.workgroup_size <= 1024, f"kernels.{name}", f"has workgroups of {kernel.workgroup_size} threads"
        )
        require(
            kernel.shared_bytes <= MAX_SHARED_BYTES,
            f"kernels.{name}",
            f"adds {kernel.shared_bytes} bytes of workgroup memory; the maximum is {MAX_SHARED_BYTES}",
        )
        for size in (*kernel.grid, *kernel.uniforms):
            check_expr(f"kernels.{name}", size)
    for name, variants in manifest.variants.items():
        for variant in variants:
            check_condition(f"variants.{name}", variant.when)
    check_steps(manifest)
    if manifest.lora is not None:
        check_lora(manifest.lora, manifest)
    if manifest.self_test is not None:
        check_self_test(manifest.self_test, manifest)
    if manifest.vector_test is not None:
        check_vector_test(manifest.vector_test, manifest)
    for name, test in ((VISION, manifest.vision_test), (HEARING, manifest.hearing_test)):
        if test is not None:
            check_feature_test(test, manifest, name)
    check_tuning(manifest)
    check_prefixes(manifest)


def check_prefixes(manifest: Manifest) -> None:
    files = {entry.file: entry.size for entry in manifest.files}
    offered = {entry.dtype for entry in manifest.activations}
    require(not manifest.prefixes or manifest.generates, "prefixes", "are of a model that generates no text")
    for index, prefix in enumerate(manifest.prefixes):
        where = f"prefixes[{index}]"
        require(prefix.activation in offered, where, f"is for {prefix.activation}, which the bundle does not offer")
        fills = prefix.tokens % manifest.page_size == 0 and prefix.tokens < manifest.context
        require(fills, where, f"has {prefix.tokens} tokens, which must fill pages within the context")
        pages = live_pages(group_windows(manifest), prefix.tokens, manifest.page_size)
        size = pages_bytes(manifest.states, pages, prefix.activation)
        require(files.get(prefix.file) == size, where, f"has a file that is missing, or not of {size} bytes")


def check_files(files: Sequence[FileEntry], kernels: Mapping[str, str] | None = None) -> None:
    """``kernels``: the hashes of the files that contain kernels."""
    hashes = {entry.file: entry.sha256 for entry in files} | dict(kernels or {})
    require(len(hashes) == len(files) + len(kernels or {}), "files", "lists one file twice")


def kernel_files(manifest: Manifest) -> dict[str, str]:
    files: dict[str, str] = {}
    for name, kernel in manifest.kernels.items():
        same = files.setdefault(kernel.file, kernel.sha256)
        require(same == kernel.sha256, f"kernels.{name}", f"gives {kernel.file!r} a different hash than other kernels")
    require(manifest.target != "cpu" or len(files) == 1, "kernels", "of a CPU bundle must be in one library")
    return files


def quantization_of(name: str, group: int | None = None) -> quant.Quantization:
    try:
        return quant.by_name(name, group)
    except QuantizationError as error:
        raise Fault("quantization", error.message) from error


def form_of(where: str, name: str) -> quant.WeightForm:
    try:
        return quant.form_by_name(name)
    except QuantizationError as error:
        raise Fault(where, error.message) from error


def check_weight(where: str, weight: WeightEntry, manifest: Manifest, *, other_bits: bool = False) -> None:
    """Check that a weight's planes match its quantization and its shape, and are inside the shards. ``other_bits``:
    that of an encoder of pictures or sound, which may have other bits than the text model.
    """
    require(len(weight.shape) == (1 if weight.quantization is None else 2), where, f"has shape {weight.shape}")
    if weight.quantization is None:
        expected = {"w": ("float32", weight.shape)}
        require(weight.layout == "rows", where, "is a vector, whose layout must be rows")
    else:
        rows, columns = weight.shape
        form = form_of(where, weight.quantization)
        planes = form.planes(columns)
        expected = {plane.name: (plane.dtype, stored_shape(weight.layout, rows, plane.columns)) for plane in planes}
        require(
            weight.quantization == manifest.quantization
            or weight.quantization not in quant.NAMES
            or other_bits
            # The architecture does not let routers be rounded.
            or isinstance(form, Dense),
            where,
            f"has quantization {weight.quantization}, but the bundle has {manifest.quantization}",
        )
    require(
        [plane.name for plane in weight.planes] == list(expected), where, f"must have the planes {', '.join(expected)}"
    )
    for plane in weight.planes:
        dtype, shape = expected[plane.name]
        here = f"{where}.{plane.name}"
        require(
            (plane.dtype, plane.shape) == (dtype, shape),
            here,
            f"is {plane.shape} of {plane.dtype}; it must be {shape} of {dtype}",
        )
        size = math.prod(shape) * np.dtype(dtype).itemsize
        require(plane.size == size, here, f"has {plane.size} bytes; its shape has {size}")
        require(
            plane.shard < len(manifest.shards),
            here,
            f"is in shard {plane.shard}, but the bundle has {len(manifest.shards)} shards",
        )
        fits = plane.offset <= manifest.shards[plane.shard].size - size and plane.offset % PLANE_ALIGNMENT == 0
        require(
            fits,
            here,
            f"has offset {plane.offset}; it must be inside shard {plane.shard} at a multiple of {PLANE_ALIGNMENT}",
        )


def check_expr(where: str, expr: Expr, depth: int = 0) -> None:
    """Check a size: it has known operators and dims, and numbers that every runtime represents exactly."""
    if isinstance(expr, int):
        require(0 <= expr <= MAX_INTEGER, where, f"has the number {expr}")
    elif isinstance(expr, str):
        require(expr in DIMS, where, f"has the dim {expr[:20]!r}; known: {', '.join(sorted(DIMS))}")
    else:
        require(
            len(expr) == 3 and isinstance(expr[0], str) and expr[0] in OPERATORS and depth < MAX_DEPTH,
            where,
            f"has the expression {str(expr)[:60]}",
        )
        for operand in expr[1:]:
            check_expr(where, operand, depth + 1)
        if expr[0] == "ceildiv":
            require(isinstance(expr[2], int) and expr[2] > 0, where, "must divide by a positive number")


def check_size(where: str, expr: Expr) -> None:
    """Check an array's size: it must grow with every dim, because arrays are allocated for the largest batch."""
    check_expr(where, expr)
    require(not subtracts(expr), where, "subtracts, so a smaller batch could need more memory")


def subtracts(expr: Expr) -> bool:
    return isinstance(expr, list) and (expr[0] == "sub" or any(subtracts(operand) for operand in expr[1:]))


def check_condition(where: str, condition: Condition, depth: int = 0) -> None:
    if condition is None:
        return
    require(len(condition) == 3 and depth < MAX_DEPTH, where, f"has the condition {str(condition)[:60]}")
    comparison, *operands = condition
    if comparison == "and":
        for operand in operands:
            require(isinstance(operand, list), where, f"has the condition {str(operand)[:60]}")
            check_condition(where, operand, depth + 1)
        return
    require(
        isinstance(comparison, str) and comparison in COMPARISONS, where, f"has the comparison {str(comparison)[:20]!r}"
    )
    for operand in operands:
        require(type(operand) in (int, str, list), where, f"compares {str(operand)[:20]!r}")
        check_expr(where, operand, depth + 1)


def check_lora(lora: LoraEntry, manifest: Manifest) -> None:
    """Check that every module's rows are inside its states."""
    states = manifest.states
    for name, parts in lora.modules.items():
        for part in parts:
            where = f"lora.{name}"
            for state in (part.a, part.b):
                require(
                    state in states and states[state].shape[:1] == ["M"],
                    where,
                    f"names {state!r}, which is not a state of adapters",
                )
                require(
                    len(states[state].shape) == 3, where, f"names {state!r}, which is not a matrix for each adapter"
                )
            (_, ranks, _), (_, rows, rank) = states[part.a].shape, states[part.b].shape
            # `check_steps` has checked that states have fixed sizes.
            assert isinstance(ranks, int)
            assert isinstance(rows, int)
            require(rank == lora.rank, where, f"has rank {rank}, not {lora.rank}")
            require((part.part + 1) * lora.rank <= ranks, where, f"has part {part.part} of {ranks} rows")
            require(part.start < part.stop <= rows, where, f"has rows {part.start} to {part.stop} of {rows}")
            require(part.first_row <= MAX_COUNT, where, f"starts at row {part.first_row}")
            if part.pairs is not None:
                head_dim, rotary_dim = part.pairs.head_dim, part.pairs.rotary_dim
                whole = max(each.first_row + each.stop - each.start for each in parts)
                require(
                    rotary_dim <= head_dim and rotary_dim % 2 == 0 and whole % head_dim == 0,
                    where,
                    f"has heads of {head_dim} rows, {rotary_dim} of them pairs, in {whole} rows",
                )


def check_tuning(manifest: Manifest) -> None:
    """Check that the records name existing lists and variants."""
    for record in manifest.tuning:
        for name, tuned in record.variants.items():
            known = {"+".join(variant.kernels) for variant in manifest.variants.get(name, ())}
            for each in tuned:
                found = each.variant in known
                require(found, f"tuning.{name[:80]}", f"names {each.variant[:80]!r}, which is not in the list")
                check_condition(f"tuning.{name}", each.when)
