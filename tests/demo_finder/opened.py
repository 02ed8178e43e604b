"""Opens the demo finder as a server does, over the reference runner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.engine.encoder_engine import EncoderEngine
from nearfar.server_fallback.engine.encoder_model import EncoderModel
from nearfar.server_fallback.executors.encoder_executor import EncoderExecutor
from nearfar.server_fallback.executors.text_model import TextModel


def executor_of(bundle: Bundle) -> EncoderExecutor:
    runner = ReferenceRunner(bundle, limits=Limits(sequences=16), activation="float32")
    return EncoderExecutor(
        EncoderEngine(runner, EncoderModel.of(bundle.manifest)), TextModel.of(bundle, bundle.manifest.model)
    )


@asynccontextmanager
async def opened(bundle: Bundle) -> AsyncIterator[EncoderExecutor]:
    """The executor of a bundle, which is closed in the end."""
    executor = executor_of(bundle)
    try:
        yield executor
    finally:
        await executor.close()
