"""The parts of the web package that a site has: the library with the hashes of its files, and the chat page."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from hashlib import sha256, sha384
from pathlib import Path

from ..browser.page_server import PAGE
from ..ir.tasks import Task
from ..runtime.errors import ToolError

DIST = PAGE.parent
# What a page imports, and its file.
LIBRARY: Mapping[str, str] = {"@nearfar/web": "nearfar.js", "@nearfar/web/probe": "probe.js"}
NOTICES = "LICENSES.txt"
# The folders of both in a site.
LIBRARY_FOLDER, CHAT_FOLDER = "nearfar", "chat"
_IMPORT = re.compile(r"""["']\./([\w-]+\.js)["']""")
# The page loads the bundle that this element names, unless its address names one.
_HEAD = "<head>"


def require_library() -> None:
    """Raises ToolError if the web package has not been built: an editable install does not build it."""
    for path in (*(DIST / name for name in LIBRARY.values()), PAGE / "index.html"):
        if not path.is_file():
            raise ToolError(f"{path.name} is not built; run 'make web' in a checkout (it needs Node.js 20 or newer)")


def library_files() -> list[Path]:
    """The library and every file that it may import later, by name."""
    found, waiting = set[str](), list(LIBRARY.values())
    while waiting:
        name = waiting.pop()
        if name in found or not (DIST / name).is_file():
            continue
        found.add(name)
        waiting += _IMPORT.findall((DIST / name).read_text(encoding="utf-8"))
    return [DIST / name for name in sorted(found)]


def copy_library(site: Path) -> Mapping[str, str]:
    """Copy the library into a folder of its own version: pages with the hashes of an earlier one still load that.
    Returns the integrity of each file (W3C, Subresource Integrity), by its path in the site.
    """
    files = {path.name: path.read_bytes() for path in (*library_files(), DIST / NOTICES)}
    version = sha256(b"".join(name.encode() + sha256(data).digest() for name, data in sorted(files.items())))
    folder = f"{LIBRARY_FOLDER}/{version.hexdigest()[:12]}"
    if not (site / folder).exists():
        (site / folder).mkdir(parents=True)
        for name, data in files.items():
            (site / folder / name).write_bytes(data)
    return {
        f"{folder}/{name}": f"sha384-{base64.b64encode(sha384(data).digest()).decode()}"
        for name, data in files.items()
        if name != NOTICES
    }


def copy_chat(site: Path, bundles: Sequence[tuple[str, str]]) -> None:
    """Copy the chat page, which offers ``bundles``, name and folder in the site, and opens the first."""
    folder = site / CHAT_FOLDER
    shutil.copytree(PAGE, folder)
    listed = [{"name": name, "bundle": f"../{path}/"} for name, path in bundles]
    (folder / "bundles.json").write_text(json.dumps(listed) + "\n", encoding="utf-8")
    element = f'{_HEAD}\n    <meta name="bundle" content="{html.escape(listed[0]["bundle"])}" />'
    for page in folder.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(text.replace(_HEAD, element, 1), encoding="utf-8")


# What a page does with a model, by its task.
CALLS: Mapping[Task, str] = {
    "generate": 'for await (const event of engine.generate("Why is the sky blue?")) document.body.append(event.text);',
    "embed": 'console.log(await engine.embeddings.create({ input: "Why is the sky blue?" }));',
    "rerank": 'console.log(await engine.rerank({ query: "colour of the sky", documents: ["Blue.", "It is late."] }));',
    "classify": 'console.log(await engine.classify({ input: "Why is the sky blue?" }));',
    "decide": 'console.log(await engine.decide("dim the lights", { on: { type: "yes_no", question: "Is it on?" } }));',
    "transcribe": 'console.log(await engine.transcribe(await (await fetch("speech.wav")).blob()));',
}


def snippet(name: str, task: Task, hashes: Mapping[str, str], base: str) -> str:
    """Elements for a page: the library by its hashes, and a model of the catalog. ``base``: the site's address, or
    "./" for a page in the site.
    """
    where = {f"{base}{path}": digest for path, digest in hashes.items()}
    by_name = {address.rpartition("/")[2]: address for address in where}
    imports = {module: by_name[file] for module, file in LIBRARY.items()}
    mapped = json.dumps({"imports": imports, "integrity": where}, indent=2)
    return f"""<script type="importmap">
{mapped}
</script>
<script type="module">
  import {{ Engine }} from "@nearfar/web";

  const engine = await Engine.load({json.dumps(name)}, {{ catalog: {json.dumps(f"{base}catalog.json")} }});
  {CALLS[task]}
</script>
"""
