"""The prefixes of a bundle: for the text of a system message, the keys and values, and states, after the tokens with
which every chat with it starts. A page that starts so need not compute them.

The reference computes them: the architecture's graph on the bundle's own weights in numpy, with keys and values rounded
as a device rounds them. A device that computes them itself may round other last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Literal

import numpy as np

from ..bundle.entries import BufferEntry, PrefixEntry
from ..bundle.manifest import GENERATE, Manifest
from ..formats.checkpoint import Checkpoint
from ..given_file import MAX_DATA_BYTES, read_given_text
from ..ir.pages import PAGE_DIMS, STATES, WINDOW_PAGES
from ..ir.plan import Plan
from ..quant.base import Array
from ..runtime.batch import DERIVED_INPUTS, Chunk, make_batch
from ..runtime.errors import RequestError, reason_of
from ..runtime.graph_walk import Execution, walk
from ..runtime.page_groups import live_pages, pages_bytes, windows_of_groups
from ..runtime.text.chat_template import ChatTemplate
from ..runtime.text.tokenizer import Tokenizer
from ..runtime.text.tokenizer_files import TokenizerFiles
from .graphs import PAGE_SIZE
from .self_test import Reference, packed_rows
from .store import Store

FOLDER = "prefixes"
# A page computes a shorter prefix about as fast as it reads one (web/src/prefixes).
LEAST_TOKENS = 64
# A page downloads one before its first token.
MOST_BYTES = 32 << 20
# Of these dtypes, devices that compute in another one do not use a prefix.
Dtype = Literal["float16", "float32"]
DTYPES: tuple[Dtype, ...] = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The tokens of a system message, in whole pages, and how many pages of each page group are kept of them."""

    token_ids: Sequence[int]
    pages: Sequence[range]


def plan_prefix(file: Path, checkpoint: Checkpoint, plan: Plan, context: int, activations: Sequence[str]) -> Prefix:
    """The prefix of a text. Raises RequestError for one that chats do not share, or that is too large to ship."""
    where = f"--prefix {file}"
    dtypes = shipped_dtypes(activations)
    if not dtypes:
        raise RequestError(f"{where}: needs activations of {' or '.join(DTYPES)}; change --activations")
    ids = shared_tokens(where, read_text(where, file), checkpoint.tokenizer)
    ids = ids[: len(ids) // PAGE_SIZE * PAGE_SIZE]
    if not LEAST_TOKENS <= len(ids) < context:
        raise RequestError(
            f"{where}: chats with this system message share {len(ids)} tokens in whole pages, and a bundle ships "
            f"{LEAST_TOKENS} to {context - 1}; change the text, or remove the option"
        )
    has_two = any(state.shape[0] == WINDOW_PAGES for state in plan.states.values())
    windows = windows_of_groups(checkpoint.spec.windows, context, has_two=has_two)
    size = max(pages_bytes(plan.states, live_pages(windows, len(ids), PAGE_SIZE), dtype) for dtype in dtypes)
    if size > MOST_BYTES:
        raise RequestError(
            f"{where}: its {len(ids)} tokens take {size / 2**20:.1f} MiB of keys and values, and a bundle ships at "
            f"most {MOST_BYTES >> 20} MiB; shorten the text, use --kv q8 or q4, or --activations float16, or remove "
            "the option: pages keep what their own devices compute"
        )
    return Prefix(ids, live_pages(windows, len(ids), PAGE_SIZE))


def shipped_dtypes(activations: Sequence[str]) -> list[Dtype]:
    return [dtype for dtype in DTYPES if dtype in activations]


def read_text(where: str, file: Path) -> str:
    try:
        return read_given_text(file, MAX_DATA_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{where}: cannot be read: {reason_of(error)}; name a text file in UTF-8") from error


def shared_tokens(where: str, text: str, files: TokenizerFiles) -> list[int]:
    """The tokens with which all chats start whose system message is the text. Raises RequestError."""
    tokenizer = Tokenizer(files)
    chats = [[{"role": "system", "content": text}, {"role": "user", "content": content}] for content in ("", "x")]
    try:
        first, second = (tokenizer.encode_chat(chat) for chat in chats)
        if files.chat_template is not None:
            clock = datetime(2001, 2, 3, 4, 5, 6)
            tokenizer.chat_template = ChatTemplate(files.chat_template, files.special_tokens, lambda: clock)
        later = tokenizer.encode_chat(chats[0])
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error
    if later != first:
        raise RequestError(
            f"{where}: the model's chat template writes the date or the time into the prompt, so its tokens change; "
            "remove the option"
        )
    equal = (one == other for one, other in zip(first, second, strict=False))
    return [token for token, _ in zip(first, takewhile(bool, equal), strict=False)]


def with_prefixes(
    manifest: Manifest,
    prefixes: Sequence[Prefix],
    store: Store,
    reference: Reference | None,
    progress: Callable[[int, int], None],
) -> Manifest:
    """Compute the prefixes, and put their files into the store; without a reference, files of their sizes."""
    entries, files = [], []
    for index, prefix in enumerate(prefixes):
        for dtype, content in contents(manifest, prefix, reference, progress).items():
            entry = PrefixEntry(
                file=f"{FOLDER}/{index}.{dtype}.bin",
                tokens=len(prefix.token_ids),
                tokens_sha256=sha256(np.array(prefix.token_ids, "<i4").tobytes()).hexdigest(),
                activation=dtype,
            )
            entries.append(entry)
            files.append(store.put(entry.file, content))
    return manifest.model_copy(update={"prefixes": entries, "files": [*manifest.files, *files]})


def contents(
    manifest: Manifest, prefix: Prefix, reference: Reference | None, progress: Callable[[int, int], None]
) -> dict[Dtype, bytes]:
    """By activation dtype, the content of the prefix's file: see `PrefixEntry`."""
    dtypes = shipped_dtypes([entry.dtype for entry in manifest.activations])
    states = manifest.plans[GENERATE].states
    if reference is None:
        return {dtype: bytes(pages_bytes(states, prefix.pages, dtype)) for dtype in dtypes}
    graph = reference.graph
    pages = range(len(prefix.token_ids) // PAGE_SIZE)
    batch = make_batch([Chunk(prefix.token_ids, 0, pages, state=(0, 0))], PAGE_SIZE)
    dims = batch.dims(len(pages), num_states=1)
    executions = [Execution(graph, batch.arrays(DERIVED_INPUTS), dims, dtype) for dtype in dtypes]
    # With float16, values may overflow, as on a device.
    with np.errstate(over="ignore", invalid="ignore"):
        walk(graph, graph.outputs["logits"], executions, packed_rows(reference), progress)
    return {
        dtype: b"".join(blocks(execution.values, prefix, states))
        for dtype, execution in zip(dtypes, executions, strict=True)
    }


def blocks(values: Mapping[str, Array], prefix: Prefix, states: Mapping[str, BufferEntry]) -> list[bytes]:
    """The pages group by group, each with all layers, and last the states."""
    groups = [*zip(PAGE_DIMS, prefix.pages, strict=False), (STATES, range(1))]
    return [
        values[name][unit].tobytes()
        for dim, units in groups
        for unit in units
        for name, state in states.items()
        if state.shape[0] == dim
    ]
