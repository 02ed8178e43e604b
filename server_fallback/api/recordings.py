"""Recordings in the messages of a chat, which the server's transcriber writes down."""

from __future__ import annotations

from ..executors.executor import Call, Executor, TellsAbilities
from ..executors.recordings import written_down
from ..executors.transcriber import TranscriberByName
from ..schema.chat import ChatCompletionRequest, SoundTranscript
from ..text.attachments import recordings
from .service import Service


async def heard(
    service: Service, executor: Executor, request: ChatCompletionRequest, call: Call
) -> tuple[ChatCompletionRequest, list[SoundTranscript]]:
    """As `written_down`, by the server's transcriber. Without one, or if the executor's model hears, nothing is
    changed.
    """
    name, hears = service.config.transcriber, isinstance(executor, TellsAbilities) and executor.abilities().hears
    if name is None or hears or not recordings(request.messages):
        return request, []
    return await written_down(TranscriberByName(name, service.models, service.hearing), name, request, call)
