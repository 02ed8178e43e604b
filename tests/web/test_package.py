"""The packed package: built by esbuild and in Node, and, exhaustively, by webpack and without a bundler.
test_package_everywhere.py tries other tools.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import ROOT
from packed_web import Answers, answers, copy_app, pack, run, unpack, write_page
from playwright.sync_api import Page
from static_site import serve

APP = ("ask.js", "main.js", "worker_main.js", "engine_worker.js", "build_webpack.mjs", "node.mjs")
ESBUILD = "node_modules/esbuild/bin/esbuild"


@pytest.fixture(scope="module")
def tarball(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    return pack(tmp_path_factory.mktemp("tarball"), built=True)


@pytest.fixture(scope="module")
def app(tarball: Path, light_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An application with the package and the bundlers installed."""
    folder = tmp_path_factory.mktemp("package") / "app"
    copy_app(folder, APP, light_demo)
    unpack(tarball, folder / "node_modules")
    for name in ("esbuild", "webgpu", "webpack"):
        (folder / "node_modules" / name).symlink_to(ROOT / "web/node_modules" / name)
    return folder


@pytest.fixture
def url(app: Path) -> Iterator[str]:
    with serve(app / "out") as url:
        yield url


def files_of(tarball: Path) -> set[str]:
    with tarfile.open(tarball) as archive:
        return {name.removeprefix("package/") for name in archive.getnames()}


@pytest.mark.exhaustive
def test_npm_pack_of_a_fresh_checkout_builds_what_make_web_builds(tarball: Path, tmp_path: Path) -> None:
    assert files_of(pack(tmp_path)) == files_of(tarball)


def test_npm_pack_packs_every_file_that_the_package_names(tarball: Path) -> None:
    files = files_of(tarball)
    package = json.loads((ROOT / "web/package.json").read_text())
    named = {
        package["main"],
        package["types"],
        *(path for entry in package["exports"].values() for path in entry.values()),
    }
    assert {path.removeprefix("./") for path in named} <= files
    assert {"LICENSE", "README.md", "dist/LICENSES.txt"} <= files
    assert not any(name.startswith(("dist/page", "dist/tools", "src")) for name in files)
    assert {name.rpartition(".")[2] for name in files} <= {"LICENSE", "js", "json", "md", "ts", "txt"}


# Prints the names of each error class of each entry: its export, the class, and an instance.
ERROR_NAMES = """
const names = [];
for (const entry of ["", "/runtime", "/worker", "/client", "/webllm"]) {
  for (const [name, value] of Object.entries(await import(`@nearfar/web${entry}`))) {
    if (value?.prototype instanceof Error) names.push([name, value.name, new value("code", "message").name]);
  }
}
console.log(JSON.stringify(names));
"""


def test_error_classes_have_their_names_in_the_built_files(node: str, app: Path) -> None:
    names = json.loads(run([node, "--input-type=module", "-e", ERROR_NAMES], app))
    expected = {"BundleError", "DeviceError", "RequestError", "StorageError", "Unavailable", "WorkerError"}
    assert {name for name, _, _ in names} == {*expected, "NearfarError"}
    for name, *others in names:
        assert others == [name, name]


def test_the_package_imports_nothing_that_npm_does_not_install_with_it(app: Path, tmp_path: Path) -> None:
    package = json.loads((app / "node_modules/@nearfar/web/package.json").read_text())
    entries = [f"node_modules/@nearfar/web/{entry['default']}" for entry in package["exports"].values()]
    options = [
        "--bundle",
        "--format=esm",
        "--packages=external",
        f"--metafile={tmp_path}/meta.json",
        f"--outdir={tmp_path}",
    ]
    run([ESBUILD, *entries, *options, "--log-level=warning"], app)
    inputs = json.loads((tmp_path / "meta.json").read_text())["inputs"].values()
    imported = {
        found["path"]
        for each in inputs
        for found in each["imports"]
        if found.get("external") and found["path"] != "<runtime>"
    }
    assert {"/".join(path.split("/")[: 2 if path.startswith("@") else 1]) for path in imported} <= set(
        package.get("peerDependencies", {})
    )


def test_esbuild_builds_a_page_that_loads_the_grammar_compiler_for_a_structured_answer_only(
    page: Page, app: Path, url: str
) -> None:
    run([ESBUILD, "main.js", "--bundle", "--format=esm", "--splitting", "--outdir=out", "--log-level=warning"], app)
    write_page(app / "out", "main")
    found = answers(page, url)
    found.check()
    assert [name.partition("-")[0] for name in found.scripts_for_json] == ["grammar"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("entry", "options"),
    [("worker_main", []), ("main", ["--minimize"])],
    ids=["worker", "page"],
)
def test_webpack_builds_a_page(page: Page, app: Path, url: str, entry: str, options: list[str]) -> None:
    run(["node", "build_webpack.mjs", *options], app)
    write_page(app / "out", entry)
    answers(page, url).check()


@pytest.mark.exhaustive
def test_a_page_without_a_bundler_loads_the_package_from_another_origin(page: Page, app: Path, tmp_path: Path) -> None:
    (tmp_path / "npm/@nearfar").mkdir(parents=True)
    (tmp_path / "npm/@nearfar/web@0.1.0").symlink_to(app / "node_modules/@nearfar/web")
    with serve(tmp_path, {"Access-Control-Allow-Origin": "*"}) as cdn, serve(app) as url:
        imports = json.dumps({"imports": {"@nearfar/web": f"{cdn}npm/@nearfar/web@0.1.0/dist/nearfar.js"}})
        write_page(app / "out", "../main", head=f'<script type="importmap">{imports}</script>')
        found = answers(page, f"{url}out/")
    found.check()
    assert found.scripts_for_json == ["grammar.js"]


# A test above imports the package in Node; the TypeScript tests run engines there.
@pytest.mark.exhaustive
def test_node_answers(app: Path, node: str, swiftshader: Mapping[str, str]) -> None:
    Answers.read(run([node, "node.mjs"], app, swiftshader)).check()
