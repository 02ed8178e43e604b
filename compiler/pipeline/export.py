"""Exports a checkpoint to a bundle in a framework's own format, which the framework's own tools load.

checkpoint -> spec -> graph -> the framework's graph or configuration
           -> tensors, packed  -> the framework's files, and our manifest beside them
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, cast

from .. import quant
from ..arch.families import LARGE_ACTIVATIONS
from ..bundle.check import manifest_file
from ..bundle.entries import FileEntry
from ..bundle.folder import ExportBundle, file_entry, tokenizer_entry
from ..bundle.manifest import AUDIO, CTC, EMBED, FORMAT_VERSION, HEARING, MANIFEST_FILE, VISION, ExportManifest
from ..bundle.new_folder import new_folder
from ..formats import load
from ..formats.checkpoint import Checkpoint
from ..formats.task_adapters import for_adapter
from ..formats.towers import TEXT_ONLY, without_ears
from ..ir.graph import Graph
from ..ir.plan import union
from ..measure.vector_loss import loss_notes
from ..runtime.errors import RequestError, UnsupportedModel
from ..runtime.text.template_check import chat_notes
from .context import model_context, rotation_notes
from .graphs import FOUR_BITS, graphs_of, with_eight_bits
from .options import CompileOptions, Note, Progress
from .stored_forms import choose_quantization, keep_stored_forms
from .target import Exporter, ExportOptions, load_exporter
from .task import for_task
from .weights import check_tensors


def export_model(
    model: str, output: Path, options: CompileOptions, progress: Progress = lambda *_: None, note: Note = lambda _: None
) -> ExportBundle:
    """Export a local folder or a repository on the hub to a bundle for ``options.target`` at
    ``output``.

    Raises CheckpointError, UnsupportedModel, QuantizationError, OutputError or RequestError. After an error, no partial
    output remains.
    """
    job = prepare_export(model, options, progress, note)
    for text in loss_notes(job.checkpoint, job.options.quantization):
        note(text)
    with new_folder(output, force=options.force) as folder:
        job.exporter.export(
            job.checkpoint, job.graphs, job.options, folder, lambda done, total: progress("weights", done, total)
        )
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        manifest = export_manifest(job, [file_entry(folder, file) for file in files])
        (folder / MANIFEST_FILE).write_bytes(manifest_file(manifest, indent=1))
    return ExportBundle(output, manifest)


@dataclass(frozen=True, slots=True)
class ExportJob:
    """A model that can be exported with the options, checked against its spec. No tensor has been read."""

    model: str
    target: str
    exporter: Exporter
    checkpoint: Checkpoint
    graphs: Mapping[str, Graph]
    options: ExportOptions


def prepare_export(model: str, options: CompileOptions, progress: Progress, note: Note) -> ExportJob:
    """See `export_model`."""
    target, device, kv = options.target, options.device, options.kv
    exporter = load_exporter(target)
    if device is not None and device not in exporter.DEVICES:
        known = (
            f"known: {', '.join(exporter.DEVICES)}"
            if exporter.DEVICES
            else f"target {target} has no choice of device, so remove the option"
        )
        raise RequestError(f"--device {device}: unknown device; {known}")
    device = device or (exporter.DEVICES[0] if exporter.DEVICES else None)
    if kv not in ("activation", "q8"):
        what, able = ("8-bit floats for them", "cuda")
        if kv == "q4":
            what, able = "4-bit keys and values", "webgpu, cpu or cuda"
        raise RequestError(f"--kv {kv}: {target} bundles do not support {what}; use --kv q8, or --target {able}")
    if options.quantization is not None:
        quant.by_name(options.quantization, options.group_size)
    progress("read", 0, 1)
    loaded = load(model, options.ignore_keys, text_only=options.text_only)
    checkpoint = for_task(for_adapter(loaded, options.adapter), options.task).with_float_scales
    if checkpoint.spec.vision is not None and VISION not in exporter.PLANS:
        raise UnsupportedModel(
            f"{model}: sees pictures, which {target} bundles do not; add {TEXT_ONLY} to export the text model alone, "
            "or use --target webgpu, cpu, cuda, onnx or mlx"
        )
    if checkpoint.spec.hearing is not None and HEARING not in exporter.PLANS:
        note(f"{model}: hears, which {target} bundles do not; this one reads texts and pictures")
        checkpoint = without_ears(checkpoint)
    for text in (*checkpoint.notes, *chat_notes(checkpoint.tokenizer), *exporter.notes(checkpoint)):
        note(text)
    progress("read", 1, 1)
    spec = checkpoint.spec
    if checkpoint.task is not None:
        check_task(model, target, checkpoint, kv, exporter.PLANS)
    fmt, keeps_forms = choose_quantization(
        options.quantization, checkpoint, note, requantize=options.requantize, group=options.group_size
    )
    is_large = spec.model_type in LARGE_ACTIVATIONS
    activation = choose_activation(
        options.activations, fmt.activations, exporter.activations(device), device or target, is_large=is_large
    )
    if is_large and activation == "float16":
        note(
            f"published models of {spec.model_type} have activations beyond float16's range, and {target} folders hold "
            "the residual stream in that dtype: answers may be wrong; leave out --activations"
        )
    longest = checkpoint.max_tokens if options.context is None else None
    chosen = ExportOptions(
        quantization=fmt,
        activation=activation,
        device=device,
        kv=kv,
        context=min(model_context(options.context, spec), longest or sys.maxsize),
    )
    for text in rotation_notes(spec, chosen.context):
        note(text)
    progress("graph", 0, 1)
    # No framework has heads that draft tokens.
    made = graphs_of(checkpoint, chosen.context, page_size=chosen.context, whole=True)
    graphs = {name: graph for name, graph in made.items() if name in exporter.PLANS}
    if (
        checkpoint.task is not None
        and checkpoint.speech is None
        and any("page_ids" in graph.inputs for graph in graphs.values())
    ):
        raise UnsupportedModel(
            f"{model}: its layers need pages of keys and values, which {target} bundles of embeddings and scores have "
            "not; use --target webgpu, cpu or cuda"
        )
    check_tensors(checkpoint, union(each.parameters for each in made.values()))
    if fmt.name == FOUR_BITS:
        graphs = with_eight_bits(graphs)
    if checkpoint.activation_scales:
        module, *others = checkpoint.activation_scales
        raise UnsupportedModel(
            f"{model}: rounds activations to 8-bit integers ({module} and {len(others)} other modules), which {target} "
            "bundles cannot; use --target webgpu, cpu or cuda",
            module=module,
        )
    if keeps_forms:
        graphs = {name: keep_stored_forms(graph, checkpoint) for name, graph in graphs.items()}
    progress("graph", 1, 1)
    return ExportJob(model, target, exporter, checkpoint, graphs, chosen)


def check_task(model: str, target: str, checkpoint: Checkpoint, kv: str, plans: tuple[str, ...]) -> None:
    """Raises UnsupportedModel for a target whose bundles have no such ``plans``, and RequestError for keys and values
    of integers, which a model that makes embeddings or scores does not keep, and one of sound only as computed.
    """
    if checkpoint.speech is not None or checkpoint.ctc is not None:
        if (CTC if checkpoint.speech is None else AUDIO) not in plans:
            raise UnsupportedModel(
                f"{model}: transcribes sound as {checkpoint.spec.model_type} does, which {target} bundles cannot; use "
                "--target webgpu, cpu, cuda or onnx",
                model_type=checkpoint.spec.model_type,
            )
        if kv != "activation":
            raise RequestError(
                f"--kv {kv}: not supported for {model} on {target}, which reads sound; remove the option"
            )
        return
    if EMBED not in plans:
        makes = "embeddings" if checkpoint.embedding is not None else "scores"
        raise UnsupportedModel(
            f"{model}: makes {makes}, but {target} bundles generate text; use --target webgpu, cpu, cuda or onnx"
        )
    if kv != "activation":
        raise RequestError(f"--kv {kv}: {model} keeps no keys and values; remove the option")


def export_manifest(job: ExportJob, files: list[FileEntry]) -> ExportManifest:
    options = job.options
    return ExportManifest(
        format_version=FORMAT_VERSION,
        generator=f"nearfar {version('nearfar')}",
        target=job.target,
        model=Path(job.model).resolve().name,
        spec=job.checkpoint.spec,
        embedding=job.checkpoint.embedding,
        classifier=job.checkpoint.classifier,
        images=job.checkpoint.images,
        sounds=job.checkpoint.sounds,
        speech=job.checkpoint.speech,
        ctc=job.checkpoint.ctc,
        origin=job.checkpoint.origin,
        quantization=options.quantization.name,
        context=options.context,
        page_size=options.context,
        kv=cast(Literal["activation", "q8"], options.kv),
        tokenizer=tokenizer_entry(job.checkpoint.tokenizer),
        files=files,
        device=options.device,
        activation=cast(Literal["float32", "float16", "bfloat16"], options.activation),
        group_size=options.quantization.group,
    )


def choose_activation(
    requested: tuple[str, ...] | None,
    offered: tuple[str, ...],
    possible: tuple[str, ...],
    device: str,
    *,
    is_large: bool = False,
) -> str:
    """The first requested or offered dtype that the device supports; float16 comes last if activations are too large
    for it (``is_large``). Raises RequestError.
    """
    if requested is not None and len(requested) != 1:
        raise RequestError(f"--activations {' '.join(requested)}: a graph has one activation dtype; choose one")
    # bfloat16 can replace float16 if the framework supports it; it has the range of float32.
    offered = (*offered, "bfloat16") if "float16" in offered else offered
    if is_large:
        offered = tuple(dtype for dtype in ("bfloat16", "float32", "float16") if dtype in offered)
    if requested is not None and requested[0] not in offered:
        raise RequestError(f"--activations {requested[0]}: the quantization offers {', '.join(offered)}")
    chosen = next((dtype for dtype in requested or offered if dtype in possible), None)
    if chosen is None:
        raise RequestError(
            f"{', '.join(requested or offered)} activations do not run on {device}, "
            f"which supports {', '.join(possible)}"
        )
    return chosen
