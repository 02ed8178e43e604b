"""nearfar node: run this machine's part of a vLLM that `nearfar serve --executor vllm --nodes N` starts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress

from nearfar.compiler.runtime.errors import RequestError

from ..executors.node import Node
from ..executors.vllm import find_vllm
from .options import Node as NodeOptions

KEY_VARIABLE = "NEARFAR_NODE_KEY"


def run(options: NodeOptions) -> None:
    """Raises ToolError if vLLM is missing, RequestError without a key."""
    host, port = options.head
    node = Node(host, port, options.rank, node_key(os.environ), find_vllm())

    async def until_a_signal() -> None:
        running = asyncio.create_task(node.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(until_a_signal())


def node_key(environment: Mapping[str, str]) -> str:
    """Raises RequestError."""
    key = environment.get(KEY_VARIABLE)
    if not key:
        raise RequestError(f"set {KEY_VARIABLE} to the same secret text on all machines of the model")
    return key
