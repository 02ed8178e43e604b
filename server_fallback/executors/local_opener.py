"""Open a model on this machine as a LocalExecutor: a bundle, or a checkpoint that is compiled into the cache on first
use.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from nearfar.compiler.bundle.folder import Bundle, ExportBundle, open_any
from nearfar.compiler.bundle.manifest import DRAFT, MANIFEST_FILE, Manifest
from nearfar.compiler.bundle.signature import TrustedKey, read_trusted_keys
from nearfar.compiler.demo import DEMOS
from nearfar.compiler.formats.ignored_keys import IgnoredKeys
from nearfar.compiler.names import EXPORTS
from nearfar.compiler.pipeline.options import CompileOptions, ModelOptions
from nearfar.compiler.runtime.audio.transcribe import LIMITS
from nearfar.compiler.runtime.errors import RequestError, reason_of
from nearfar.compiler.runtime.inputs import require_known_inputs
from nearfar.compiler.runtime.limits import tokens_at_once
from nearfar.compiler.store.bundles import HeldBundle
from nearfar.compiler.store.model import StoredModel
from nearfar.compiler.store.opening import compile_fields, exists, with_template
from nearfar.compiler.store.store import Store

from ..engine.config import EngineConfig
from ..engine.encoder_engine import EncoderEngine
from ..engine.speculation import Speculation
from ..engine.token_engine import TokenEngine
from ..engine_process.remote_engine import RemoteEngine
from ..processes.child import is_supported
from ..receipts.issuer import Issuer
from ..receipts.signing import ReceiptKey
from ..schema.route import Side
from ..text.grammar.grammar_compiler import GrammarCompiler
from ..text.text_workers import TextWorkers
from .adaptable import AdaptableExecutor
from .apart import ApartEngine
from .catalog_models import CatalogModels
from .compile_process import compiled
from .devices import default_arch, default_target, kv_memory_bytes
from .encoder_executor import EncoderExecutor
from .executor import Executor, Opening
from .local import LocalExecutor
from .local_options import LocalOptions
from .local_recipe import LocalRecipe, Planned
from .local_share import LocalShare, SpeechShare
from .memory import context_bytes, plan_memory, weight_bytes
from .page_transfer import PageIdentity
from .registry import default_name
from .shared_opener import open_encoder, open_workers
from .slot_files import FLAG, SlotFiles
from .slots import Slots
from .speech_executor import SpeechExecutor
from .text_model import TextModel
from .watermark_key import require_marks, watermark_of

NGRAM, HEADS = "ngram", "heads"
# Prompt tokens and decoded tokens of a step together. A larger number makes prefill faster and decoding sequences wait
# longer.
STEP_TOKENS = {"cpu": 256, "onnx": 256, "cuda": 2048}
DEFAULT_SEQUENCES = {"cpu": 32, "cuda": 256}
# Of a batch of texts to embed or score.
BATCH_TEXTS, BATCH_TOKENS = 64, 4096

# The model that is compiled, then phase, done and total as `compile_model` reports them.
Progress = Callable[[str, str, int, int], None]


async def open_executor(model: str | Path, options: LocalOptions | None = None) -> Executor:
    """Open a model on this machine: a bundle, the folder or file of a checkpoint, its name on the Hugging Face Hub, or
    a demo model such as "demo-finder". A checkpoint is compiled into the cache on first use. The caller closes it.

    Raises the errors of `LocalOpener`, and DeviceError if the device refuses it.
    """
    opening = await LocalOpener(options or LocalOptions()).prepare(str(model), None)
    return await opening.open()


class LocalOpener:
    """Implements `Opener`. ``progress`` is called while a model is compiled. ``side`` is what receipts say.

    Raises RequestError and ToolError for keys to trust, a key of receipts or one of a watermark, that cannot be read.
    """

    def __init__(self, options: LocalOptions, progress: Progress = lambda *_: None, *, side: Side = "far") -> None:
        self._options, self._progress, self._side = options, progress, side
        self._trusted = read_trusted_keys(options.trust)
        self._ignored_keys = IgnoredKeys(options.ignore_keys)
        self._watermark = watermark_of(options)
        self._slot_files = slot_files_of(options)
        self._receipt_key = None if options.receipt_key is None else ReceiptKey(options.receipt_key)
        self._catalog: CatalogModels | None = None
        self._store = Store.of_user()
        # One process for all models.
        self._compiler = GrammarCompiler()
        # A check of a manifest may use the shared script, of which each thread keeps one: 2.3 MB.
        self._reader = ThreadPoolExecutor(1, "nearfar-bundles")

    def require_ignored_keys(self) -> None:
        """Raises RequestError for a key to ignore that no model had so far."""
        self._ignored_keys.require_found()

    async def plan(self, model: str) -> Planned:
        """The bundle of a model, compiled if it is a checkpoint, and the limits with which it would be served. Raises
        as `prepare`.
        """
        return await self._planned(model)

    async def prepare(self, model: str, name: str | None) -> Opening:
        """Raises BundleError, CheckpointError, RequestError and the other errors of compiling."""
        options = self._options
        stored = await asyncio.to_thread(self._stored, model)
        planned = await self._planned(model)
        # A model of embeddings or scores has nothing to draft.
        by_model = options.draft not in (None, NGRAM, HEADS) and planned.bundle.manifest.generates
        draft = await self._planned(options.draft, is_draft=True) if options.draft is not None and by_model else None
        name = name or default_name(model)
        held = HeldBundle(planned.bundle.path)

        async def open_it() -> Executor:
            # Hashes, weights and libraries are read on a thread, so that running requests do not wait.
            text = await asyncio.to_thread(TextModel.of, planned.bundle, name)
            if options.prefill.role == "prefill" and not text.generates:
                raise RequestError(
                    f"{name}: --role prefill is for models that generate text; serve this one without it",
                    param="model",
                )
            if text.transcribes:
                return await self._open_speech(planned, text)
            if not text.generates:
                return await self._open_encoder(planned, text)
            workers = await open_workers(text, self._compiler, options.images)
            if options.shared and workers.template is not None:
                # The template is valid. The front ends render it.
                workers.template.close()
                workers = replace(workers, template=None)
            try:
                return await self._open(planned, draft, text, workers, stored)
            except BaseException:
                workers.close()
                raise

        memory_bytes = planned.memory.total_bytes + (draft.memory.total_bytes if draft else 0)
        limits = planned.memory.limits
        answers = min(limits.sequences, limits.rows) + options.max_waiting
        return Opening(name, memory_bytes, open_it, planned.bundle.manifest.task, answers, held.close)

    async def _open_speech(self, planned: Planned, text: TextModel) -> SpeechExecutor:
        await asyncio.to_thread(text.read)
        runner = await asyncio.to_thread(planned.open_runner)
        options, memory_bytes = self._options, planned.memory.total_bytes
        share = None
        if options.shared:
            share = SpeechShare(planned.bundle, text.name, str(uuid4()), runner.device, memory_bytes)
        return SpeechExecutor(runner, text, max_waiting=options.max_waiting, memory_bytes=memory_bytes, share=share)

    async def _open_encoder(self, planned: Planned, text: TextModel) -> EncoderExecutor:
        options = self._options
        await asyncio.to_thread(text.read)
        recipe = LocalRecipe(planned, None, EngineConfig(max_waiting=options.max_waiting, batching=options.batching))
        engine: RemoteEngine | EncoderEngine
        share = None
        if options.own_process and is_supported():
            engine = await RemoteEngine.open(recipe, options.hang_seconds)
            if options.shared:
                socket = await engine.share()
                share = LocalShare(planned.bundle, text.name, socket, planned.memory.total_bytes, options.images)
        else:
            opened = await asyncio.to_thread(recipe.open)
            assert isinstance(opened, EncoderEngine)
            engine = opened
        memory_bytes = planned.memory.total_bytes
        return await open_encoder(engine, text, self._compiler, options.images, memory_bytes=memory_bytes, share=share)

    async def _open(
        self,
        planned: Planned,
        draft: Planned | None,
        text: TextModel,
        workers: TextWorkers,
        stored: StoredModel | None,
    ) -> LocalExecutor:
        options, manifest = self._options, planned.bundle.manifest
        speculation = None
        if options.draft is not None:
            kind: Literal["ngram", "heads"] = "heads" if options.draft == HEADS else "ngram"
            speculation = Speculation(kind if draft is None else "draft", options.draft_tokens)
        # Read from the bundle once: it may be deleted while the model is served.
        await asyncio.to_thread(text.read)
        config = EngineConfig(
            max_waiting=options.max_waiting,
            speculation=speculation,
            image_cache_bytes=options.images.image_cache_bytes,
            watermark=self._watermark,
            marks_all=self._watermark is not None and options.watermark == "all",
            kv_tiers=options.kv_tiers,
        )
        recipe = LocalRecipe(planned, draft, config)
        memory_bytes = planned.memory.total_bytes + (draft.memory.total_bytes if draft else 0)
        engine: RemoteEngine | TokenEngine
        if options.own_process and is_supported():
            engine = await RemoteEngine.open(recipe, options.hang_seconds)
        else:
            opened = await asyncio.to_thread(recipe.open)
            assert isinstance(opened, TokenEngine)
            engine = opened
        issuer = share = None
        if self._receipt_key is not None:
            about = planned.bundle, text.name, engine.device, engine.activation, self._receipt_key
            issuer = await asyncio.to_thread(Issuer.of, *about, self._side)
        if options.shared and isinstance(engine, RemoteEngine):
            share = LocalShare(planned.bundle, text.name, await engine.share(), memory_bytes, options.images, issuer)
        kept: Any = {"workers": workers, "memory_bytes": memory_bytes, "device": engine.device, "share": share}
        kept |= {"issuer": issuer, "stored": stored, "only_prefills": options.prefill.role == "prefill"}
        answering: RemoteEngine | TokenEngine | ApartEngine = engine
        pages = kept["pages"] = PageIdentity.of(manifest, engine.prefix_key)
        if pages is None and options.prefill.role != "both":
            await engine.close()
            raise RequestError(
                f"{text.name}: --role {options.prefill.role}: the {manifest.target} target keeps no pages that servers "
                "can exchange; compile it for cpu or cuda",
                param="model",
            )
        if pages is not None and options.prefill.role == "decode":
            answering = ApartEngine(engine, pages, options.prefill, text.name)
        if self._slot_files is not None:
            limits = planned.memory.limits
            # A file has less than the device's memory.
            kept["slots"] = Slots(engine, self._slot_files, min(limits.sequences, limits.rows), memory_bytes)
        if isinstance(manifest, Manifest) and manifest.lora is not None:
            executor = AdaptableExecutor(answering, text, manifest, **kept)
            adapter = None if stored is None else await asyncio.to_thread(self._store.adapter, stored)
            if stored is not None and adapter is not None:
                await executor.adapt(stored.name, str(adapter))
            return executor
        if stored is not None and stored.adapter is not None:
            await answering.close()
            raise RequestError(
                f"{stored.name}: its base is a bundle that accepts no LoRA adapters; create it from a checkpoint, or "
                "from a bundle that was compiled with --lora-rank",
                param="model",
            )
        return LocalExecutor(answering, text, **kept)

    async def _planned(self, model: str, *, is_draft: bool = False) -> Planned:
        """A step checks drafts of each sequence and in addition those of clients. A step of a draft checks none."""
        bundle = await self._bundle(model)
        manifest, options = bundle.manifest, self._options
        if manifest.transcribes:
            return self._planned_speech(bundle)
        require_known_inputs(manifest)
        if self._watermark is not None and manifest.generates and not is_draft:
            require_marks(manifest)
        checks = manifest.generates and not is_draft
        guesses = options.draft_tokens if checks and options.draft is not None else 0
        by_heads = guesses > 0 and options.draft == HEADS
        if by_heads and DRAFT not in manifest.plan_names:
            raise RequestError(
                f"--draft {HEADS}: {manifest.model} has no heads that draft tokens; draft with {NGRAM} or a smaller "
                "model, or compile a checkpoint with tensors mtp.*, or a Gemma 4 model with its --assistant",
                param="draft",
            )
        sequences = options.max_sequences or DEFAULT_SEQUENCES.get(manifest.target, 8)
        extra_rows = sequences * guesses + options.remote_drafts if checks else 0
        tokens = max(STEP_TOKENS.get(manifest.target, 64), sequences + extra_rows, tokens_at_once(manifest))
        if not manifest.generates:
            batching = options.batching
            # Each text in progress has states, which may be as large as the keys and values of many tokens.
            sequences = batching.max_texts or (min(sequences, BATCH_TEXTS) if manifest.keeps_states else BATCH_TEXTS)
            tokens = batching.max_tokens or (BATCH_TOKENS if not manifest.paged else tokens)
            # A batch of complete texts holds at least the longest one.
            tokens = max(tokens, sequences if manifest.paged else manifest.context)
        kv_bytes = options.kv_memory_bytes or kv_memory_bytes(
            manifest.target, weight_bytes(manifest), context_bytes(manifest, tokens, drafts=by_heads)
        )
        # While drafts are made or checked, the state before them is retained. A draft has no prefix cache.
        states = 2 * sequences if is_draft else sequences * (1 + (guesses > 0))
        states += options.state_snapshots if checks else 0
        adapters = options.max_adapters if isinstance(manifest, Manifest) and manifest.lora is not None else 0
        memory = plan_memory(
            manifest,
            sequences=sequences,
            tokens=tokens,
            kv_bytes=kv_bytes,
            extra_rows=extra_rows,
            adapters=adapters,
            states=states,
            drafts=by_heads,
        )
        return Planned(bundle, memory)

    def _planned_speech(self, bundle: Bundle | ExportBundle) -> Planned:
        """One sequence, with several sampled rows."""
        manifest, options = bundle.manifest, self._options
        tokens = STEP_TOKENS.get(manifest.target, 64)
        kv_bytes = options.kv_memory_bytes or context_bytes(manifest, tokens)
        return Planned(
            bundle, plan_memory(manifest, sequences=1, tokens=tokens, kv_bytes=kv_bytes, extra_rows=LIMITS.rows - 1)
        )

    async def _bundle(self, model: str) -> Bundle | ExportBundle:
        options = self._options
        if options.catalog is not None:
            if self._catalog is None:
                self._catalog = await asyncio.to_thread(CatalogModels.fetch, options.catalog)
            models = self._catalog
            if models.has(model):
                progress = partial(self._progress, model)
                pulled = await asyncio.to_thread(models.cached, model, options.target, self._trusted, progress)
                return await self._read_bundle(pulled, self._trusted)
        stored = await asyncio.to_thread(self._stored, model)
        if stored is not None:
            path = await asyncio.to_thread(self._store.path, stored)
        else:
            path = DEMOS.get(model) or Path(os.path.expanduser(model))
        try:
            is_bundle, is_folder = (path / MANIFEST_FILE).is_file(), path.is_dir()
        except (OSError, ValueError) as error:
            raise RequestError(
                f"{model}: cannot be read: {reason_of(error)}; give a folder, or a name on the Hugging Face Hub",
                param="model",
            ) from error
        if is_bundle:
            return with_template(await self._read_bundle(path, self._trusted), stored)
        target = options.target or default_target()
        given = {each.name: getattr(options, each.name) for each in fields(ModelOptions)}
        given["ignore_keys"] = self._ignored_keys.keys
        given |= compile_fields(stored, self._store, given)
        # The frameworks' runners mark answers of every bundle.
        given["watermark"] = self._watermark is not None and target not in EXPORTS
        wanted = CompileOptions(target=target, arch=default_arch(target), **given)
        name = str(path) if is_folder or stored is not None else model
        while True:
            try:
                bundle = await compiled(
                    name, wanted, lambda phase, done, total: self._progress(model, phase, done, total)
                )
            except RequestError as error:
                # The compiler reads the model's file first, so nothing was compiled yet.
                wanted = replace(wanted, ignore_keys=self._ignored_keys.without_missing(wanted.ignore_keys, error))
            else:
                self._ignored_keys.found(wanted.ignore_keys)
                return with_template(await self._read_bundle(bundle), stored)

    async def _read_bundle(self, path: Path, trusted: Sequence[TrustedKey] = ()) -> Bundle | ExportBundle:
        return await asyncio.get_running_loop().run_in_executor(self._reader, open_any, path, trusted)

    def _stored(self, model: str) -> StoredModel | None:
        """The stored model of this name, unless it is also a path or a demo."""
        return None if model in DEMOS or exists(model) else self._store.find(model)


def slot_files_of(options: LocalOptions) -> SlotFiles | None:
    """The files of slots; None without a folder for them. Raises RequestError."""
    if options.slot_save_path is None:
        return None
    if options.shared:
        raise RequestError(f"{FLAG} excludes --front-ends: each process would have slots of its own; leave one out")
    return SlotFiles(options.slot_save_path, options.slot_save_size)
