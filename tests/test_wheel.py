"""Our wheel, built from a clean copy of the sources, installed outside of the repository, and used as its users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import xgrammar_library
from conftest import ROOT
from install_size import MAX_SERVE_MB
from openai import OpenAI
from served_demo import WITH_FEW_KERNELS, Served, start
from xgrammar_library import LIBRARY_SUFFIXES, pin

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.publish.library import DIST, NOTICES, library_files

QUESTION, ANSWER = "what is 27 + 58?", "27 + 58 = 85"
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
# The extras that the commands below need.
EXTRAS = "serve,demo"
NOTES = """# Signals

Aborting the signal ends the download at once.

# Sums

27 and 58 are added.

# Light

The kitchen is dark.
"""


@dataclass(frozen=True, slots=True)
class Installed:
    python: Path
    has_test_packages: bool
    """Whether this environment's packages are there. They can reduce the compiled kernels (`served_demo.py`)."""

    @property
    def env(self) -> Mapping[str, str]:
        return WITH_FEW_KERNELS if self.has_test_packages else {}

    def nearfar(self, *arguments: str, folder: Path) -> str:
        return run([self.python.with_name("nearfar"), *arguments], folder, self.env)

    def start(self, *arguments: str, folder: Path, command: str = "serve") -> Served:
        return start(*arguments, folder=folder, command=command, log=command, python=self.python, env=self.env)()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows, and this checkout's npm packages and built page; without xgrammar's library."""
    folder = tmp_path_factory.mktemp("clone")
    listed = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / "web/node_modules").symlink_to(ROOT / "web/node_modules")
    # It is newer than its sources, so it is not built again.
    shutil.copytree(DIST, folder / "web/dist", copy_function=shutil.copy)
    return folder


@pytest.fixture(scope="module")
def wheel(node: str, clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    folder = tmp_path_factory.mktemp("wheel")
    library = clone / xgrammar_library.FOLDER.relative_to(ROOT)
    if xgrammar_library.FOLDER.is_dir():
        shutil.copytree(xgrammar_library.FOLDER, library)
    run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, clone], folder)
    shutil.rmtree(library)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module", params=["here", pytest.param("index", marks=pytest.mark.exhaustive)])
def installed(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A fresh environment with the wheel, and either this environment's other packages or what pip installs from the
    public index.
    """
    folder = tmp_path_factory.mktemp("environment")
    here = request.param == "here"
    venv.create(folder, symlinks=True, with_pip=not here)
    python = folder / "bin/python"
    if here:
        # Python compiles what the commands import, a small part of the files.
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile"]
        run([*pip, "--no-deps", "--no-index", str(wheel)], folder)
        # Python reads no .pth files in a folder that a .pth file adds, so this environment's nearfar stays unknown.
        (packages,) = folder.glob("lib/*/site-packages")
        (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    else:
        run([python, "-m", "pip", "install", f"{wheel}[{EXTRAS}]", "packaging"], folder)
    return Installed(python, has_test_packages=here)


def run(command: Sequence[str | Path], folder: Path, env: Mapping[str, str] | None = None) -> str:
    """The output of a command that must succeed, without this machine's settings of pip."""
    kept = ("HOME", "PATH", "PIP_CERT", "XDG_RUNTIME_DIR", "OMP_NUM_THREADS", "NEARFAR_KERNEL_CACHE")
    own = {name: os.environ[name] for name in kept if name in os.environ}
    own |= {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "COLUMNS": "120", **(env or {})}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_wheel_contains_the_page_and_the_library_with_their_licenses_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"nearfar-{version('nearfar')}-py3-none-{pin().platform}.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    page, library = "nearfar/web/dist/page/", "nearfar/server_fallback/text/grammar/xgrammar/"
    assert {f"{page}index.html", f"{page}page.js", f"{page}service_worker.js", f"{page}LICENSES.txt"} <= names
    assert {f"{library}LICENSE", f"{library}NOTICE", f"{library}picojson-LICENSE"} <= names
    assert len([name for name in names if name.startswith(library) and name.endswith(LIBRARY_SUFFIXES)]) == 1
    assert [name for name in names if name.endswith("dist-info/licenses/LICENSE")] != []
    ends = {name.rpartition("/")[2].rpartition(".")[2] for name in names}
    assert ends.isdisjoint({"map", "built", "ts", "pyc"}), ends
    # The page's sources, and what only the package for npm has, are not ours to install.
    dist = {f"nearfar/web/dist/{path.name}" for path in (*library_files(), DIST / NOTICES)}
    inside = {name for name in names if name.startswith("nearfar/web/") and not name.startswith(page)}
    assert dist <= inside
    assert {name for name in inside - dist if not name.endswith(".js")} == set()


@pytest.mark.exhaustive
def test_the_page_is_built_from_the_files_that_git_knows(clone: Path) -> None:
    built = clone / "web/dist"
    shutil.rmtree(built)
    run(["node", "build.mjs"], clone / "web")
    assert {path.name: path.read_bytes() for path in built.glob("*.js")} == {
        path.name: path.read_bytes() for path in DIST.glob("*.js")
    }
    # The names of parts contain hashes, which depend on the paths of npm's packages.
    assert {path.stem.rpartition("-")[0] for path in (built / "page").iterdir()} == {
        path.stem.rpartition("-")[0] for path in PAGE.iterdir()
    }


def test_an_editable_install_without_a_network_fails_with_the_file_that_it_needs(clone: Path) -> None:
    build = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "1"}
    environment.pop(xgrammar_library.VARIABLE, None)
    done = subprocess.run(
        [sys.executable, "-c", build, clone / "build"],
        cwd=clone, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"error: pip could not download {pin().file_name}" in done.stderr
    assert "set NEARFAR_XGRAMMAR_WHEEL to its path" in done.stderr


# tests/web/test_documents_page.py has the documents page, which the command drives here.
@pytest.mark.parametrize(
    "with_documents", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["chat", "documents"]
)
@pytest.mark.usefixtures("chromium")
def test_the_installed_commands_compile_run_and_demonstrate(
    with_documents: bool, installed: Installed, tmp_path: Path
) -> None:
    found = run([installed.python, "-c", "import nearfar.web as web; print(*web.__path__)"], tmp_path).strip()
    assert Path(found).is_relative_to(installed.python.parents[1])
    installed.nearfar("compile", "demo", "-o", "bundle", folder=tmp_path)
    assert ANSWER in installed.nearfar("run", "bundle", QUESTION, "--runner", "numpy", folder=tmp_path)
    asked = ["--prompt", QUESTION, "--screenshot", "demo.png"]
    if with_documents:
        (tmp_path / "notes.md").write_text(NOTES)
        asked += ["--document", "notes.md", "--question", "cancel loading a model"]
    printed = installed.nearfar("demo", "bundle", *asked, folder=tmp_path)
    assert ANSWER in printed
    assert "tokens/s" in printed
    assert "--serve" in printed
    files = [tmp_path / "demo.png"]
    if with_documents:
        # No word of the question is in the passage that the encoder puts first.
        first = printed.partition("cancel loading a model")[2]
        assert "Signals" in first.partition("\n2 ")[0]
        files.append(tmp_path / "demo-documents.png")
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.exhaustive
def test_the_installed_server_and_gateway_answer_with_and_without_a_schema(
    installed: Installed, tmp_path: Path
) -> None:
    server = installed.start("demo", folder=tmp_path)
    try:
        policy = tmp_path / "policy.json"
        policy.write_text('{"version": 1, "mode": "prefer-far"}')
        sides = ("--near", "demo", "--far", server.url, "--far-model", "demo", "--policy", str(policy))
        gateway = installed.start(*sides, folder=tmp_path, command="gateway")
        try:
            for labels, side in (((), "far"), (("private",), "near")):
                assert chat(gateway, labels) == (side, ANSWER)
                route, text = chat(gateway, labels, response_format=FORMAT)
                assert route == side
                assert list(json.loads(text)) == ["sum"]
        finally:
            gateway.end()
    finally:
        server.end()


FORMAT = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {**SCHEMA, "additionalProperties": False}}}


def chat(gateway: Served, labels: Sequence[str], **options: Any) -> tuple[str | None, str]:
    """The side that answered, and its answer."""
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        raw = client.chat.completions.with_raw_response.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            extra_body={"labels": labels},
            **options,
        )
        return raw.headers["x-nearfar-route"], raw.parse().choices[0].message.content or ""


@pytest.mark.parametrize("installed", [pytest.param("index", marks=pytest.mark.exhaustive)], indirect=True)
def test_the_server_adds_little_to_the_compiler(installed: Installed, tmp_path: Path) -> None:
    sizes = json.loads(run([installed.python, ROOT / "tests/install_size.py", "serve"], tmp_path))
    assert sizes["serve"] < MAX_SERVE_MB
    distributions = run([installed.python, "-m", "pip", "list"], tmp_path)
    assert "nearfar" in distributions
    assert "torch" not in distributions
