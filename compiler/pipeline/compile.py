"""Compiles a checkpoint into a bundle.

checkpoint -> spec -> graphs -> passes -> plans -> the target's kernels
           -> tensors, packed a block of rows at a time           -> a folder

The folder is written under a temporary name and renamed at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from .. import quant
from ..bundle.check import manifest_file
from ..bundle.entries import TuningEntry
from ..bundle.folder import Bundle, ExportBundle, tokenizer_entry
from ..bundle.manifest import AUDIO, CLASSIFY, DRAFT, EMBED, FORMAT_VERSION, GENERATE, MANIFEST_FILE, Manifest
from ..bundle.new_folder import new_folder
from ..bundle.probe import PROBE_FILE
from ..bundle.tuning import check_tuning, read_tuning
from ..calibration.record import QUALITY_FILE
from ..formats import load
from ..formats.assistant import with_assistant
from ..formats.checkpoint import Checkpoint
from ..formats.origin import model_name
from ..formats.task_adapters import for_adapter
from ..ir.graph import Graph
from ..ir.kv_format import kv_format
from ..ir.plan import Plan, join_plans, make_plan, union
from ..ir.spec import ModelSpec
from ..measure.vector_loss import loss_notes
from ..names import EXPORTS
from ..passes import run_passes
from ..passes.add_lora import lora_entry
from ..passes.quantize_kv import quantize_kv
from ..passes.split_page_groups import split_page_groups
from ..quant import Quantization
from ..runtime.errors import RequestError
from ..runtime.text.template_check import chat_notes
from .context import paged_context, rotation_notes, unpaged_context
from .export import export_model
from .graphs import FOUR_BITS, PAGE_SIZE, TOWERS, graphs_of, reads_complete_texts, with_eight_bits
from .options import CompileOptions as CompileOptions
from .options import Note, Progress
from .plan_entries import plan_entries, write_kernels
from .prefixes import plan_prefix, with_prefixes
from .probe import make_probe
from .self_test import Reference, make_self_test
from .store import FolderStore, Store, WeightsJob
from .stored_forms import UNQUANTIZED, choose_quantization, keep_stored_forms, require_fittable
from .target import Target, load_target
from .task import for_task
from .vector_test import make_feature_test, make_vector_test
from .weights import check_tensors

if TYPE_CHECKING:
    from ..calibration.best import Quantized

MAX_LORA_RANK = 256


def compile_any(
    model: str, output: Path, options: CompileOptions, progress: Progress = lambda *_: None, note: Note = lambda _: None
) -> Bundle | ExportBundle:
    """Call `compile_model`, or `export_model` for a target of EXPORTS."""
    if options.target not in EXPORTS:
        return compile_model(model, output, options, progress, note)
    require_export(options)
    return export_model(model, output, options, progress, note)


def require_export(options: CompileOptions) -> None:
    """Raises RequestError for options that targets of EXPORTS do not support."""
    unsupported = {
        "--arch": options.arch,
        "--assistant": options.assistant,
        "--quality": options.quality,
        "--lora-rank": options.lora_rank,
        "--tuning": options.tuning,
        "--prefix": options.prefix,
        "--watermark": options.watermark,
    }
    for flag, value in unsupported.items():
        if value:
            raise RequestError(f"{flag}: target {options.target} does not support this option; remove it")


def compile_model(
    model: str, output: Path, options: CompileOptions, progress: Progress = lambda *_: None, note: Note = lambda _: None
) -> Bundle:
    """Compile a local folder or a repository on the hub into a bundle at ``output``. ``note`` receives the checkpoint's
    notes.

    Raises CheckpointError, UnsupportedModel, QuantizationError, OutputError or RequestError. After an error, no partial
    output remains.
    """
    job = prepare(model, options, progress, note)
    if options.quality is None:
        for text in loss_notes(job.checkpoint, job.quantization):
            note(text)
        with new_folder(output, force=options.force) as folder:
            return Bundle(output, build(job, FolderStore(folder), progress))
    from ..calibration.best import calibrate

    with new_folder(output, force=options.force) as folder:
        quantized, finished = calibrate(job.checkpoint, options.calibration, options.bits, output, progress)
        bundle = Bundle(output, build(job, FolderStore(folder), progress, quantized))
    finished.remove()
    return bundle


@dataclass(frozen=True, slots=True)
class Job:
    """A model and options that fit each other: they were checked against the model's spec. No tensor has been read.

    ``keeps_forms``: the matrices that the checkpoint stores quantized stay as they are.
    """

    model: str
    options: CompileOptions
    target: Target
    quantization: Quantization
    keeps_forms: bool
    activations: tuple[str, ...]
    tuning: Mapping[Path, TuningEntry]
    checkpoint: Checkpoint
    context: int


def prepare(model: str, options: CompileOptions, progress: Progress, note: Note) -> Job:
    """Raises CheckpointError, UnsupportedModel or RequestError."""
    check_options(options)
    progress("read", 0, 1)
    loaded = load(model, options.ignore_keys, text_only=options.text_only)
    checkpoint = for_task(for_adapter(loaded, options.adapter), options.task)
    checkpoint = with_assistant(checkpoint, options.assistant, options.ignore_keys)
    for text in (*checkpoint.notes, *chat_notes(checkpoint.tokenizer)):
        note(text)
    progress("read", 1, 1)
    return prepare_checkpoint(model, checkpoint, options, note)


def check_options(options: CompileOptions) -> None:
    """Raises RequestError for options that no model supports."""
    if options.prefix and options.target != "webgpu":
        raise RequestError(f"--prefix: target {options.target} does not support this option; remove it")
    target = load_target(options.target)
    check_quality(options)
    if options.quantization is not None:
        requested = quant.by_name(options.quantization)
        choose_activations(options.activations, requested, target.EXTRA_ACTIVATIONS)
    if options.group_size is not None or options.device is not None:
        raise RequestError(
            f"--group-size and --device: target {options.target} does not support them; "
            f"they are for {', '.join(EXPORTS)}"
        )
    if options.tuning and options.target != "webgpu":
        raise RequestError(f"--tuning: target {options.target} does not support this option; remove it")
    if not 0 <= options.lora_rank <= MAX_LORA_RANK:
        raise RequestError(f"--lora-rank {options.lora_rank}: must be between 0 (no adapters) and {MAX_LORA_RANK}")


def check_quality(options: CompileOptions) -> None:
    """Raises RequestError for options that contradict the quality."""
    if options.quality is None:
        given = {"--bits": options.bits, "--calibration": options.calibration}
        for flag, value in given.items():
            if value is not None:
                raise RequestError(f"{flag} {value}: is for --quality best; add that option, or remove this one")
    elif options.quantization is not None:
        raise RequestError(
            f"--quantization {options.quantization}: --quality best chooses the format of every matrix itself; remove "
            "one of the two options, and choose the size with --bits"
        )


def prepare_checkpoint(model: str, checkpoint: Checkpoint, options: CompileOptions, note: Note) -> Job:
    """``model``: the name that the bundle gets. Raises UnsupportedModel or RequestError."""
    check_options(options)
    target = load_target(options.target)
    if not target.UNIT_SCALES:
        checkpoint = checkpoint.with_float_scales
    tuning = read_tuning(options.tuning)
    if options.lora_rank and checkpoint.activation_scales:
        raise RequestError(
            f"--lora-rank {options.lora_rank}: {model} rounds its activations to 8 bits, and adapters beside rounded "
            "projections are not supported; remove the option"
        )
    if options.quality is None:
        quantization, keeps_forms = choose_quantization(
            options.quantization, checkpoint, note, requantize=options.requantize
        )
    else:
        require_fittable(checkpoint, requantize=options.requantize)
        quantization, keeps_forms = quant.by_name(UNQUANTIZED), True
    activations = choose_activations(options.activations, quantization, target.EXTRA_ACTIVATIONS, integers=keeps_forms)
    spec = checkpoint.spec
    if checkpoint.speech is not None or checkpoint.ctc is not None:
        check_speech(options, spec)
    if reads_complete_texts(checkpoint):
        check_unpaged(options, spec)
        context = unpaged_context(options.context, checkpoint, target.MAX_BINDING_BYTES)
    else:
        check_kv(options.kv, options.target, target)
        check_head_sizes(spec, options.kv)
        context = paged_context(options.context, spec, activations, target.MAX_BINDING_BYTES, options.kv)
    for text in rotation_notes(spec, context):
        note(text)
    return Job(model, options, target, quantization, keeps_forms, activations, tuning, checkpoint, context)


def build(job: Job, store: Store, progress: Progress, quantized: Quantized | None = None) -> Manifest:
    """Put every file of the bundle into the store. Returns the manifest. ``quantized``: the weights that replace those
    of the checkpoint.

    A store without a folder gets no self-test, because a self-test reads all weights.
    """
    options, target, checkpoint = job.options, job.target, job.checkpoint
    progress("graph", 0, 1)
    graphs = graphs_of(checkpoint, job.context)
    check_tensors(checkpoint, union(graph.parameters for graph in graphs.values()))
    files = [store.put("tokenizer.json", checkpoint.tokenizer.content)]
    if quantized is not None:
        graphs = {name: quantized.on(graph) for name, graph in graphs.items()}
        checkpoint = quantized.checkpoint(checkpoint)
        files.append(store.put(QUALITY_FILE, quantized.record.to_bytes()))
    if options.quality is not None or job.quantization.name == FOUR_BITS:
        graphs = with_eight_bits(graphs)
    if job.keeps_forms:
        graphs = {name: keep_stored_forms(graph, checkpoint) for name, graph in graphs.items()}
    plans = {name: plan_of(job, name, graph) for name, graph in graphs.items()}
    joined = join_plans(plans.values())
    if options.prefix and GENERATE not in plans:
        raise RequestError("--prefix: this model generates no text; remove the option")
    prefixes = [plan_prefix(file, checkpoint, plans[GENERATE], job.context, job.activations) for file in options.prefix]
    progress("graph", 1, 1)
    lowered = target.lower_plan(
        joined, job.quantization, job.activations, options.arch, lambda done, total: progress("kernels", done, total)
    )
    check_tuning(job.tuning, lowered.variants, job.activations)
    kernels, sources = write_kernels(lowered, store)
    stored, shards = store.put_weights(
        WeightsJob(checkpoint, joined.weights, job.quantization, target.LAYOUT, joined.host_weights),
        lambda done, total: progress("weights", done, total),
    )
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        generator=f"nearfar {version('nearfar')}",
        target=options.target,
        arch=lowered.arch,
        model=model_name(job.model),
        spec=checkpoint.spec,
        embedding=checkpoint.embedding,
        classifier=checkpoint.classifier,
        images=checkpoint.images,
        sounds=checkpoint.sounds,
        speech=checkpoint.speech,
        ctc=checkpoint.ctc,
        origin=checkpoint.origin,
        quantization=job.quantization.name,
        context=job.context,
        page_size=PAGE_SIZE,
        kv=options.kv,
        lora=lora_entry(joined, options.lora_rank) if options.lora_rank else None,
        activations=list(lowered.activations),
        plans=plan_entries(plans, lowered.step_variants),
        variants={name: list(rows) for name, rows in lowered.variants.items()},
        scratch=dict(lowered.scratch),
        kernels=kernels,
        weights={name: entry for name, entry in stored.items() if name not in joined.host_weights},
        host_weights={name: stored[name] for name in joined.host_weights},
        shards=shards,
        tokenizer=tokenizer_entry(checkpoint.tokenizer),
        files=[*files, *sources],
        self_test=None,
        vector_test=None,
        vision_test=None,
        hearing_test=None,
        tuning=list(job.tuning.values()),
    )
    reference: Reference | None = None
    if (options.self_test or prefixes) and store.folder is not None:
        # A fault of the heads makes wrong guesses, but no wrong answer.
        graph = next(graph for name, graph in graphs.items() if name not in (DRAFT, *TOWERS))
        audio = quantize_kv(graphs[AUDIO], options.kv) if AUDIO in graphs else None
        reference = Reference(Bundle(store.folder, manifest), quantize_kv(graph, options.kv), joined.weights, audio)
    if options.self_test and reference is not None and store.folder is not None:
        tested = lambda done, total: progress("self-test", done, total)  # noqa: E731
        if GENERATE in graphs:
            manifest = manifest.model_copy(update={"self_test": make_self_test(reference, tested)})
        else:
            manifest = manifest.model_copy(update={"vector_test": make_vector_test(reference, tested)})
        for name in TOWERS:
            if name in graphs:
                tower = Reference(Bundle(store.folder, manifest), graphs[name], joined.weights)
                manifest = manifest.model_copy(update={f"{name}_test": make_feature_test(tower, name, tested)})
        main = next((name for name in (GENERATE, EMBED, CLASSIFY) if name in plans), None)
        probed = main is not None and not manifest.transcribes and not joined.host_weights
        if options.target == "webgpu" and main is not None and probed:
            probe = make_probe(
                Bundle(store.folder, manifest),
                main,
                graphs[main],
                plans[main],
                lambda cut: plan_of(job, main, cut),
                job.quantization,
                target.LAYOUT,
            )
            if probe is not None:
                entry = store.put(PROBE_FILE, probe.file())
                manifest = manifest.model_copy(update={"files": [*manifest.files, entry]})
    if prefixes:
        computed = lambda done, total: progress("prefixes", done, total)  # noqa: E731
        manifest = with_prefixes(manifest, prefixes, store, reference, computed)
    store.put(MANIFEST_FILE, manifest_file(manifest))
    return manifest


def plan_of(job: Job, name: str, graph: Graph) -> Plan:
    """The plan of this name, of its graph."""
    fused = run_passes(
        graph,
        job.quantization,
        job.target.MAX_BINDING_BYTES,
        job.options.kv,
        # Adapters change the model. Guesses of the heads are those of the model without one, and so are features.
        0 if name in (DRAFT, *TOWERS) else job.options.lora_rank,
        host_tables=job.target.HOST_TABLES,
        # Guesses are checked under the watermark, and need none.
        marks=job.options.watermark and name == GENERATE,
    )
    # Nothing is given back while an embedding is computed.
    return make_plan(split_page_groups(fused) if name in (GENERATE, DRAFT) else fused, f"{name}_buffer")


def check_speech(options: CompileOptions, spec: ModelSpec) -> None:
    """Raises RequestError for options that models of sound do not support."""
    for flag, value in (("--lora-rank", options.lora_rank), ("--quality", options.quality)):
        if value:
            raise RequestError(f"{flag} {value}: not supported for {spec.model_type}, which reads sound; remove it")


def check_unpaged(options: CompileOptions, spec: ModelSpec) -> None:
    """Raises RequestError for options that models without pages do not support."""
    for flag, value, default in (("--kv", options.kv, "activation"), ("--lora-rank", options.lora_rank, 0)):
        if value != default:
            raise RequestError(
                f"{flag} {value}: this {spec.model_type} model reads complete texts without pages of keys and values, "
                "for which the option is not supported; remove it"
            )


def choose_activations(
    requested: tuple[str, ...] | None,
    quantization: Quantization,
    extra: tuple[str, ...] = (),
    *,
    integers: bool = False,
) -> tuple[str, ...]:
    """``extra``: more dtypes of the target. bfloat16 can replace float16; int8 needs integer weights, which the
    checkpoint has if ``integers``.
    """
    if requested is None:
        return quantization.activations
    suits = {"bfloat16": "float16" in quantization.activations, "int8": integers or quantization.kind in ("q4", "q8")}
    offered = (*quantization.activations, *(dtype for dtype in extra if suits[dtype]))
    missing = [dtype for dtype in requested if dtype not in offered]
    if missing or not requested:
        integers_needed = "int8" in missing and "int8" in extra
        hint = "; int8 needs weights of integers, such as those of --quantization q4f16" if integers_needed else ""
        raise RequestError(
            f"--activations {' '.join(missing)}: quantization {quantization.name} offers {', '.join(offered)} with "
            f"this target{hint}"
        )
    if len(set(requested)) < len(requested):
        raise RequestError(f"--activations {' '.join(requested)}: name each dtype once")
    return requested


def check_kv(kv: str, name: str, target: Target) -> None:
    """Raises RequestError for a format of keys and values that the target's kernels do not read."""
    if kv != "activation" and kv not in target.KV_FORMATS:
        raise RequestError(
            f"--kv {kv}: {name} bundles do not support 8-bit floats for keys and values; use --kv q8, or --target cuda"
        )


def check_head_sizes(spec: ModelSpec, kv: str) -> None:
    """Raises RequestError if keys and values of some layer cannot be packed in the format of this name."""
    form = kv_format(kv)
    if form is None:
        return
    sizes = {spec.heads_of(layer)[1] for layer in range(spec.num_layers)}
    odd = sorted(size for size in sizes if size % form.multiple)
    if odd:
        raise RequestError(
            f"--kv {kv}: the model's head size of {odd[0]} is not a multiple of {form.multiple}; remove the option"
        )
