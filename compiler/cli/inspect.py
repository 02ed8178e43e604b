"""nearfar inspect: show a bundle's contents and costs, or what a bundle of a model would cost."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from .. import quant
from ..bundle.folder import ExportBundle, open_any
from ..bundle.manifest import DRAFT, GENERATE, HEARING, MANIFEST_FILE, VISION, Manifest
from ..bundle.signature import read_trusted_keys
from ..calibration.record import Record, read_record
from ..measure.report import ExportReport, Report, make_export_report, make_report
from ..measure.shapes import report_shapes
from ..pipeline.options import CompileOptions
from ..runtime.errors import RequestError
from ..runtime.variant import stored_dtype
from .model import refuse_ignore_key
from .options import Inspect
from .origin import add_origin, origin_json
from .output import megabytes, new_console, print_json
from .step_tables import all_steps, kernel_table, template_table

# The memory that a target uses, if that is certain.
MEMORY = {"webgpu": " of the GPU", "cuda": " of the GPU", "cpu": " of the host"}
# Targets whose bundles hold native code, which runs unchecked in the process or on the GPU.
NATIVE_TARGETS = ("cpu", "cuda")
NO_TOOLS = "none: requests with tools are refused"
NATIVE_CODE = "native: it runs with your permissions, so load it only if you trust its author; see nearfar sign"


def run(options: Inspect) -> None:
    config = config_of(options.bundle)
    if config is not None:
        if options.kernels:
            raise RequestError(f"--kernels is for bundles, and {config} is a model; remove it")
        inspect_model(config, options)
        return
    if options.target is not None or options.quantization is not None:
        raise RequestError(f"--target and --quantization are for models, and {options.bundle} is a bundle; remove them")
    refuse_ignore_key(options.ignore_keys, options.bundle)
    bundle = open_any(options.bundle, read_trusted_keys(options.trust))
    if options.verify:
        bundle.verify()
    if isinstance(bundle, ExportBundle):
        if options.kernels:
            raise RequestError(f"--kernels: a bundle for {bundle.manifest.target} has none of its own; remove it")
        if options.activation not in (None, bundle.manifest.activation):
            raise RequestError(f"activation {options.activation}: the bundle offers {bundle.manifest.activation}")
        exported = make_export_report(bundle.manifest, context=options.context)
        if options.json:
            print_json({**exported.to_json(), "origin": origin_json(bundle.manifest.origin)})
            return
        table = export_facts(exported)
        add_origin(table, bundle.manifest.origin)
        new_console().print(table, files(exported))
        return
    report = make_report(bundle.manifest, context=options.context, activation=options.activation)
    record = read_record(bundle)
    if options.json:
        steps = {step.variants for step in all_steps(bundle.manifest)}
        variants = {
            name: [" + ".join(variant.kernels) for variant in bundle.manifest.variants[name]] for name in sorted(steps)
        }
        quality = None if record is None else asdict(record)
        source = origin_json(bundle.manifest.origin)
        print_json({**report.to_json(), "step_variants": variants, "quality": quality, "origin": source})
        return
    console = new_console()
    table = facts(report)
    if record is not None:
        table.add_row("quality", quality_facts(record))
    table.add_row("self-test", self_test(bundle.manifest))
    if bundle.manifest.prefixes:
        table.add_row("system messages", prefix_facts(bundle.manifest))
    add_origin(table, bundle.manifest.origin)
    console.print(table)
    console.print(kernel_table(bundle.manifest) if options.kernels else template_table(bundle.manifest))


def config_of(path: Path) -> Path | None:
    """The config.json of a model; None for a bundle."""
    # Path.is_file raises errors for paths that no file can have.
    if os.path.isfile(path):
        return path
    config = path / "config.json"
    return config if os.path.isfile(config) and not os.path.exists(path / MANIFEST_FILE) else None


def inspect_model(config: Path, options: Inspect) -> None:
    if options.verify or options.trust or options.activation is not None:
        raise RequestError(f"--verify, --trust and --activation are for bundles, and {config} is a model; remove them")
    chosen = CompileOptions(
        target=options.target or "webgpu",
        quantization=options.quantization or "q4f16",
        context=options.context,
        self_test=False,
        ignore_keys=options.ignore_keys,
    )
    report = report_shapes(config, chosen)
    if options.json:
        print_json(report.to_json())
    else:
        new_console().print(facts(report))


def facts(report: Report) -> Table:
    table = Table(title=escape(f"{report.model} for {report.target}"), show_header=False, title_justify="left")
    rows = shared_facts(report)
    formats = {
        name: each for name, each in report.weight_formats.items() if name != "f32" or report.quantization == "f32"
    }
    if formats.keys() != {report.quantization}:
        lines = [
            f"{name}: {each['parameters']:,} weights, {megabytes(each['bytes'])}" for name, each in formats.items()
        ]
        # A checkpoint that was quantized already; or a tower has more bits.
        whose = report.quantization if formats.keys() <= set(quant.NAMES) else "the checkpoint's"
        rows["quantization"] = "\n".join([f"{whose}, {activations(report)}", *lines])
    rows |= {
        **draft_facts(report),
        **vision_facts(report),
        **({"code": NATIVE_CODE} if report.target in NATIVE_TARGETS else {}),
        **host_facts(report),
        "read per token": f"{megabytes(report.weight_bytes_per_token)} of weights; "
        f"{megabytes(report.bytes_per_token_at_context)} with keys, values and states at {report.context:,} tokens",
        "dispatches": dispatches(report),
    }
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def dispatches(report: Report) -> str:
    """The dispatches of the first and the last token of a context, or of a text of one token and of the context's."""
    what = "per decoded token" if report.kv_bytes_per_token else "for a text of one token"
    at_context = f"{report.dispatches_at_context} at {report.context:,} tokens"
    return f"{report.dispatches_per_token} {what}, {at_context}"


def draft_facts(report: Report) -> dict[str, str]:
    """The heads or the assistant that draft the model's tokens, if there are any."""
    layers = report.spec["draft_layers"]
    if DRAFT not in report.plans:
        return {}
    kept = f"{report.draft_bytes_per_token:,} bytes per token if"
    if not layers:
        return {"drafts": f"an assistant, {kept} it is used"}
    kept += " they are used"
    return {"drafts": f"heads of {layers} layer{'s' * (layers > 1)}, {kept}"}


def vision_facts(report: Report) -> dict[str, str]:
    """The towers of a model that sees pictures or hears."""
    vision, hearing, facts = report.spec["vision"], report.spec["hearing"], dict[str, str]()
    if vision is not None and VISION in report.plans:
        sizes = f"{vision['model_type']}, {vision['num_layers']} layers, {vision['hidden_size']} hidden"
        facts["pictures"] = f"a tower of {sizes}, {megabytes(report.vision_bytes)} of weights"
    if hearing is not None and HEARING in report.plans:
        facts["sound"] = f"a tower of {hearing['model_type']}, {megabytes(report.hearing_bytes)} of weights"
    return facts


def host_facts(report: Report) -> dict[str, str]:
    """The weights by where they are, if some stay on the host."""
    if not report.host_weight_bytes:
        return {}
    device = report.weight_bytes - report.host_weight_bytes
    return {
        "weights on device": megabytes(device),
        "weights on host": f"{megabytes(report.host_weight_bytes)}, read row by row from the files",
    }


def prefix_facts(manifest: Manifest) -> str:
    """A line for each system message whose keys and values come with the bundle."""
    sizes = {each.file: each.size for each in manifest.files}
    lines: dict[str, list[str]] = {}
    for each in manifest.prefixes:
        first = f"{each.tokens:,} tokens: "
        lines.setdefault(each.tokens_sha256, [first]).append(f"{megabytes(sizes[each.file])} with {each.activation}")
    return "\n".join(first + ", ".join(rest) for first, *rest in lines.values())


def export_facts(report: ExportReport) -> Table:
    device = f", {report.device}" if report.device else ""
    table = Table(title=escape(f"{report.model} for {report.target}{device}"), show_header=False, title_justify="left")
    rows = shared_facts(report)
    if report.group_size is not None:
        rows["quantization"] += f", groups of {report.group_size}"
    rows["memory"] += ", plus the framework's own memory"
    for name, value in rows.items():
        table.add_row(name, escape(value))
    return table


def activations(report: Report | ExportReport) -> str:
    """The dtype that the figures are of, and those that the bundle offers if there are more."""
    offered = report.activations if isinstance(report, Report) else ()
    more = f" (offered: {', '.join(offered)})" if len(offered) > 1 else ""
    return f"activations {report.activation}{more}"


def shared_facts(report: Report | ExportReport) -> dict[str, str]:
    spec = report.spec
    bits = 8 * report.weight_bytes / report.parameters
    owner = MEMORY.get(report.target, "")
    experts = spec["experts"]
    pages = {
        "KV cache": f"{megabytes(report.kv_bytes_per_token)} per token, "
        f"{megabytes(report.kv_bytes)} for {report.context:,} tokens, "
        + (stored_dtype(report.activation) if report.kv == "activation" else report.kv)
    }
    return {
        "architecture": f"{spec['model_type']}, {spec['num_layers']} layers, {spec['hidden_size']} hidden, "
        f"vocabulary {spec['vocab_size']:,}",
        **({"experts": f"{experts['chosen']} of {experts['number']} for each token"} if experts else {}),
        "attention heads": f"{spec['num_heads']} query, {spec['num_kv_heads']} key/value, {spec['head_dim']} wide",
        "parameters": f"{report.parameters:,}",
        "plans": ", ".join(report.plans),
        "quantization": f"{report.quantization}, {activations(report)}",
        "weights": f"{megabytes(report.weight_bytes)}, {bits:.2f} bits per parameter",
        **(pages if report.kv_bytes else {}),
        **({"states": f"{megabytes(report.state_bytes)} per sequence, of any length"} if report.state_bytes else {}),
        "memory": f"{megabytes(report.runtime_memory_bytes)}{owner} at {report.context:,} tokens",
        **({"tool calls": report.tool_calls or NO_TOOLS} if GENERATE in report.plans else {}),
    }


def files(report: ExportReport) -> Table:
    table = Table(title="files, for the framework's own tools", title_justify="left")
    table.add_column("file")
    table.add_column("size", justify="right")
    for name, size in report.files.items():
        table.add_row(escape(name), megabytes(size))
    return table


def quality_facts(record: Record) -> str:
    """How `--quality best` made the weights, and what it measured on the calibration text."""
    formats = ", ".join(f"{name}: {count}" for name, count in sorted(Counter(record.formats.values()).items()))
    lines = [
        f"best: {record.bits:g} bits per weight, of at most {record.budget:g}",
        f"{record.method}; {record.calibration_tokens:,} tokens of {record.calibration}",
        f"matrices of each format: {formats}",
    ]
    if record.cosine_mean is not None:
        lines.append(
            f"cosine of the calibration texts' vectors: {record.cosine_mean:.4f}, worst {record.cosine_min:.4f}"
        )
    elif record.tuned_divergence is not None:
        lines.append(
            f"KL on held-out calibration text: {record.fitted_divergence:.3g} nats after the fit, "
            f"{record.tuned_divergence:.3g} at the end"
        )
    else:
        lines.append(f"expected KL on the calibration text: {record.expected_divergence:.3g} nats")
    return "\n".join(lines)


def self_test(manifest: Manifest) -> str:
    test = manifest.self_test or manifest.vector_test
    if test is None:
        return "none: a runtime cannot check whether a GPU computes correctly"
    # In the order of the bundle's choices.
    dtypes = [entry.dtype for entry in manifest.activations if entry.dtype in test.tolerances]
    tolerances = ", ".join(f"{test.tolerances[dtype]:.1%} with {dtype}" for dtype in dtypes)
    if manifest.self_test is None:
        what = "scores" if manifest.embedding is None else "vectors"
        texts = [] if manifest.vector_test is None else manifest.vector_test.texts
        return f"{sum(map(len, texts))} tokens, {what} within {tolerances}"
    logits = f"{len(manifest.self_test.prompt_ids)} tokens, logits within {tolerances}"
    if manifest.vision_test is None:
        return logits
    within = ", ".join(f"{tolerance:.1%} with {dtype}" for dtype, tolerance in manifest.vision_test.tolerances.items())
    return f"{logits}\nfeatures of pictures within {within}"
