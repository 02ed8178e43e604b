"""Helpers of tests of the browser's store: pages that load a hand-made bundle, and what they received and stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faulty_server import Server
from playwright.sync_api import Browser, BrowserContext, Page
from waiting import wait_until

MIB = 1 << 20
# A download is written in pieces of this size. A closed tab loses the bytes after the last complete piece.
PIECE_BYTES = 4 * MIB
BIG, SMALL = "weights/00000.bin", "weights/00001.bin"
BIG_BYTES, SMALL_BYTES = 10 * MIB, 100_000

# Writes the hand-made bundle of the runtime's tests into a folder. Its few kernels compile at once.
WRITE_LETTERS_BUNDLE = """
import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { build } from "esbuild";
const options = { entryPoints: ["test/letters_bundle.ts"], bundle: true, format: "esm", platform: "node",
    write: false };
const [{ contents }] = (await build(options)).outputFiles;
const { lettersBundle } = await import(`data:text/javascript;base64,${Buffer.from(contents).toString("base64")}`);
for (const [file, bytes] of Object.entries(lettersBundle().files)) {
    const path = join(process.argv[1], file);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, bytes);
}
"""
IMPORT = "import * as nearfar from './nearfar.js';"
LOAD = """async ([url, options]) => {
    const reports = [];
    try {
        const engine = await nearfar.Engine.load(url, { ...options, onProgress: (report) => reports.push(report) });
        const ids = [];
        for await (const { tokenId } of engine.generateTokens({ promptIds: [1, 2, 3], maxTokens: 4 }))
            ids.push(tokenId);
        engine.destroy();
        return { reports, ids, error: null };
    } catch (error) {
        return { reports, ids: [], error: error.toJSON?.() ?? { code: error.name, message: error.stack } };
    }
}"""
START = f"([url, options]) => {{ window.loading = ({LOAD})([url, options]); }}"
LOADED = "() => window.loading"
LIST = "async () => (await nearfar.cache.list()).map((bundle) => ({ ...bundle, lastUsed: bundle.lastUsed.getTime() }))"
# Whether another page waits for a file that is being fetched; whether the first piece of a file is stored.
WAITING = "async () => (await navigator.locks.query()).pending.some(({ name }) => name.startsWith('nearfar/file/'))"
FIRST_PIECE = """async (sha256) => {
    try {
        let folder = await navigator.storage.getDirectory();
        for (const name of ["nearfar", "files", sha256]) folder = await folder.getDirectoryHandle(name);
        return (await (await folder.getFileHandle("0")).getFile()).size > 0;
    } catch {
        return false;
    }
}"""
# Flips the first byte of a stored file on the disk.
DAMAGE = """async (sha256) => {
    let folder = await navigator.storage.getDirectory();
    for (const name of ["nearfar", "files", sha256]) folder = await folder.getDirectoryHandle(name);
    const handle = await folder.getFileHandle("0");
    const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
    bytes[0] ^= 1;
    const writer = await handle.createWritable();
    await writer.write(bytes);
    await writer.close();
}"""


@contextmanager
def new_context(browser: Browser, script: str = "") -> Iterator[BrowserContext]:
    """A context of its own, where the script runs before those of each page."""
    context = browser.new_context()
    context.add_init_script(script)
    yield context
    context.close()


def open_page(page: Page, server: Server) -> Page:
    page.goto(f"{server.url}index.html")
    page.wait_for_function("() => window.nearfar !== undefined")
    return page


def load(
    page: Page, server: Server, bundle: str = "bundle", *, error: str | None = None, **options: object
) -> dict[str, Any]:
    """Load a bundle and generate. Checks the error's code; returns progress reports, token ids and the error as
    JSON.
    """
    return checked(page.evaluate(LOAD, [f"{server.url}{bundle}/", options]), error)


def checked(result: dict[str, Any], error: str | None) -> dict[str, Any]:
    assert (result["error"] or {}).get("code") == error, result["error"]
    return result


def load_cut_off(page: Page, server: Server, sent: int, *, error: str | None = None) -> dict[str, Any]:
    """Load the bundle over a connection that is closed after ``sent`` bytes of the big shard.

    It is closed when the page has stored the first piece: Chromium drops bytes that the page had not read by then.
    """
    server.behaviour.hold[f"/bundle/{BIG}"] = sent
    server.behaviour.cut[f"/bundle/{BIG}"] = 0
    page.evaluate(START, [f"{server.url}bundle/", {}])
    sha256 = shard_of(server, "bundle", BIG)["sha256"]
    wait_until(lambda: bool(page.evaluate(FIRST_PIECE, sha256)))
    server.behaviour.go.set()
    return checked(page.evaluate(LOADED), error)


def stored_bytes(loaded: dict[str, Any]) -> int:
    return int(loaded["reports"][-1]["storedBytes"])


def shard_of(server: Server, bundle: str, file: str) -> dict[str, Any]:
    manifest = json.loads((server.folder / bundle / "manifest.json").read_text())
    return next(entry for entry in manifest["shards"] if entry["file"] == file)


def write_shard(bundle: Path, file: str, data: bytes) -> dict[str, Any]:
    (bundle / file).write_bytes(data)
    return {"file": file, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
