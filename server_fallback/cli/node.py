"""nearfar node: run this machine's part of a vLLM that `nearfar serve --executor vllm --nodes N` starts."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nearfar.compiler.cli.output import add_command
from nearfar.compiler.errors import RequestError

from .numbers import count, node_address
from .serve import require_libraries

KEY_VARIABLE = "NEARFAR_NODE_KEY"


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "node", run, example="nearfar node 10.0.0.1 --rank 1")
    parser.add_argument(
        "head",
        type=node_address,
        metavar="HOST[:PORT]",
        help="the first machine, which runs nearfar serve: its --node-address",
    )
    parser.add_argument(
        "--rank", type=count, required=True, metavar="N", help="the number of this machine: 1, 2, ...; the first is 0"
    )


def run(options: argparse.Namespace) -> None:
    """Raises ToolError if vLLM or the server's libraries are missing, RequestError without a key."""
    require_libraries("node")
    from ..executors.node import Node
    from ..executors.vllm import find_vllm

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
