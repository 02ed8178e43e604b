"""NodeLink: the connection between the first machine of a model and another one, as lines of JSON over TCP.

Both sides prove that they have the shared key before anything else is read, because the other machine starts what the
first one sends. The key itself is not sent. What follows is neither encrypted nor signed, like vLLM's own traffic
between nodes: use a private network. Both sides send heartbeats; silence means that the other side is dead.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from contextlib import suppress
from typing import Any

from ..processes.heartbeat import Heart

HEARTBEAT_SECONDS = 1.0
SILENCE_SECONDS = 5.0
MAX_LINE_BYTES = 1 << 16


class LinkLost(Exception):
    """The other side is gone or silent, or does not have the key. The message states which."""


class NodeLink:
    """``peer`` is the other side's address. Call ``close`` at the end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.peer = str((writer.get_extra_info("peername") or ("?",))[0])
        self._heart = Heart(HEARTBEAT_SECONDS, lambda: self.send({}))

    def send(self, message: dict[str, Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any]:
        """The next message that is not a heartbeat. Raises LinkLost."""
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    line = await self._reader.readline()
            except TimeoutError:
                raise LinkLost(f"sent nothing for {SILENCE_SECONDS:g} s") from None
            except (OSError, ValueError) as error:
                # ValueError: a line that is too long.
                raise LinkLost("broke the connection") from error
            if not line.endswith(b"\n"):
                raise LinkLost("closed the connection")
            try:
                message = json.loads(line)
            except ValueError as error:
                raise LinkLost("sent something that is not JSON") from error
            if isinstance(message, dict) and message:
                return message

    async def join(self, key: str, rank: int) -> None:
        """Prove the key to the first machine, and check its proof. Raises LinkLost."""
        challenge = secrets.token_hex(16)
        self.send({"rank": rank, "challenge": challenge})
        answer = await self.receive()
        if not hmac.compare_digest(str(answer.get("proof")), proof(key, f"head {challenge}")):
            raise LinkLost("does not have the same NEARFAR_NODE_KEY, or rejects this rank")
        self.send({"proof": proof(key, f"node {rank} {answer.get('challenge')}")})

    async def admit(self, key: str) -> int:
        """Check the proof of another machine, prove the key to it, and return its rank. Raises LinkLost."""
        hello, challenge = await self.receive(), secrets.token_hex(16)
        rank = hello.get("rank")
        if not isinstance(rank, int):
            raise LinkLost("sent no rank")
        self.send({"proof": proof(key, f"head {hello.get('challenge')}"), "challenge": challenge})
        answer = await self.receive()
        if not hmac.compare_digest(str(answer.get("proof")), proof(key, f"node {rank} {challenge}")):
            raise LinkLost("does not have the same NEARFAR_NODE_KEY")
        return rank

    async def close(self) -> None:
        self._writer.close()
        self._heart.stop()
        with suppress(OSError):
            await self._writer.wait_closed()


def proof(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), "sha256").hexdigest()
