"""Open the engine that another process of the server has started, as an executor of this process."""

from __future__ import annotations

import asyncio

from nearfar.compiler.bundle.manifest import Manifest

from ..engine.encoder_engine import EncoderEngine
from ..engine_process.attached_engine import AttachedEngine
from ..engine_process.remote_engine import RemoteEngine
from ..images.options import ImageOptions
from ..images.reader import ImageReader
from ..text.grammar.grammar_compiler import GrammarCompiler
from ..text.grammar.grammars import Grammars
from ..text.template_process import TemplateProcess
from ..text.text_workers import TextWorkers
from .adaptable import ExecutorWithAdapters
from .decision_executor import DecisionExecutor
from .encoder_executor import EncoderExecutor
from .executor import Executor
from .local import LocalExecutor
from .local_share import LocalShare
from .text_model import TextModel


async def open_shared(share: LocalShare, compiler: GrammarCompiler) -> Executor:
    """Raises CheckpointError for a tokenizer that cannot be read, DeviceError, and Unavailable if the engine does not
    run.
    """
    text = await asyncio.to_thread(read_text, share)
    if not text.generates:
        encoder = await AttachedEngine.open(share.socket)
        return await open_encoder(encoder, text, compiler, share.images, memory_bytes=share.memory_bytes)
    workers = await open_workers(text, compiler, share.images)
    try:
        engine = await AttachedEngine.open(share.socket)
    except BaseException:
        workers.close()
        raise
    manifest = share.bundle.manifest
    adapts = isinstance(manifest, Manifest) and manifest.lora is not None
    kind = ExecutorWithAdapters if adapts else LocalExecutor
    return kind(
        engine, text, workers=workers, memory_bytes=share.memory_bytes, device=engine.device, issuer=share.issuer
    )


def read_text(share: LocalShare) -> TextModel:
    text = TextModel.of(share.bundle, share.name)
    # The bundle may be deleted while the model is served.
    text.read()
    return text


async def open_encoder(
    engine: EncoderEngine | RemoteEngine | AttachedEngine,
    text: TextModel,
    compiler: GrammarCompiler,
    images: ImageOptions,
    *,
    memory_bytes: int | None,
    share: LocalShare | None = None,
) -> EncoderExecutor:
    """The executor of an open engine, which it closes on an error. Raises as `open_workers`."""
    if text.classifier is None or text.classifier.decision is None:
        return EncoderExecutor(engine, text, memory_bytes=memory_bytes, device=engine.device, share=share)
    try:
        workers = await open_workers(text, compiler, images)
    except BaseException:
        await engine.close()
        raise
    return DecisionExecutor(engine, text, workers=workers, memory_bytes=memory_bytes, device=engine.device, share=share)


async def open_workers(model: TextModel, compiler: GrammarCompiler, images: ImageOptions) -> TextWorkers:
    """Raises CheckpointError for a chat template that is not valid, Unavailable if the process that reads it was ended,
    and ToolError if a model reads images and the decoders are not installed.
    """
    reader = None if model.images is None else ImageReader(model.images, images)
    source = model.tokenizer.chat_template
    template = None if source is None else TemplateProcess(source)
    if template is not None:
        try:
            await template.check()
        except BaseException:
            template.close()
            raise
    return TextWorkers(Grammars(compiler, lambda: model.vocabulary), template, reader)
