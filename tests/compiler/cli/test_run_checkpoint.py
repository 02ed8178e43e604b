"""`nearfar run` with a checkpoint: it is compiled once into the cache of `nearfar serve`."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from pathlib import Path

import pytest

from nearfar.compiler.bundle.folder import open_any
from nearfar.compiler.cli import main
from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.formats import load
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.runtime.errors import RequestError, ToolError, UnsupportedModel
from nearfar.compiler.store.bundles import bundle_path
from nearfar.server_fallback.executors import compile_process, local_opener
from nearfar.server_fallback.executors.compile_process import Progress, default_options
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions

PROMPT = ("what is 27 + 58?", "--runner", "numpy", "--json")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def text_of(capsys: pytest.CaptureFixture[str]) -> object:
    return json.loads(capsys.readouterr().out)["text"]


@pytest.mark.usefixtures("cache")
def test_a_name_that_nothing_has_is_refused_with_the_ways_to_get_a_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("qwen3-web").mkdir()
    for name, advice in {
        "demmo": "did you mean 'demo'? nearfar list",
        "qwen3-wbe": "did you mean 'qwen3-web'? nearfar list",
        "Qwen/Qwen3-0.6B": "name; nearfar list shows its models, and nearfar pull Qwen/Qwen3-0.6B gets one",
    }.items():
        assert main(["run", name, "hi"]) == 2
        said = capsys.readouterr().err
        assert f"{name}: there is no such file or folder, and the store has no model of this name" in said
        assert advice in said


@pytest.mark.usefixtures("cache")
def test_the_demo_model_runs_from_the_cache(light_demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached = bundle_path(CHECKPOINT, default_options())
    shutil.copytree(light_demo, cached)
    assert main(["run", "demo", *PROMPT]) == 0
    assert text_of(capsys) == "27 + 58 = 85"


@pytest.mark.parametrize("name", ["model", "model.GGUF"])
@pytest.mark.usefixtures("cache")
def test_a_checkpoint_is_compiled_for_this_machine(
    name: str, light_demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / name
    if folder.suffix:
        # The compiler, which would read it, is not what is tested here.
        folder.write_bytes(b"GGUF")
    else:
        shutil.copytree(CHECKPOINT, folder)
    cached = bundle_path(folder, default_options())

    async def compiled(model: str, options: CompileOptions, progress: Progress) -> Path:
        assert (model, options) == (str(folder), default_options())
        progress("kernels", 1, 1)
        shutil.copytree(light_demo, cached)
        return cached

    # `nearfar serve` is tested with the compiler itself.
    monkeypatch.setattr(compile_process, "compiled", compiled)
    assert main(["run", str(folder), *PROMPT[:-1]]) == 0
    printed = capsys.readouterr()
    assert printed.out == "27 + 58 = 85\n"
    assert f"compiled {folder} into the cache: {cached}" in printed.err
    monkeypatch.undo()
    monkeypatch.setenv("NEARFAR_CACHE", str(cached.parent.parent))
    assert main(["run", str(folder), *PROMPT[:-1]]) == 0
    assert "compiled" not in capsys.readouterr().err


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("ignored", [(), ("odd", "odder")])
def test_serve_compiles_with_the_same_options(ignored: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    requested = []

    async def compiled(model: str, options: object, *_: object) -> Path:
        requested.append((model, options))
        raise ToolError("enough")

    monkeypatch.setattr(local_opener, "compiled", compiled)
    with pytest.raises(ToolError):
        asyncio.run(LocalOpener(LocalOptions(ignore_keys=ignored)).prepare("demo", None))
    assert requested == [(str(CHECKPOINT), default_options(ignored))]


def test_each_served_model_ignores_the_keys_that_it_has(
    light_demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in (("first", "odd"), ("second", "odder")):
        shutil.copytree(CHECKPOINT, tmp_path / name)
        config = json.loads((CHECKPOINT / "config.json").read_text())
        (tmp_path / name / "config.json").write_text(json.dumps({**config, key: 7}))
    compiled_with = []

    async def compiled(model: str, options: CompileOptions, *_: object) -> Path:
        try:
            load(model, options.ignore_keys)
        except RequestError as error:
            # It comes from another process.
            raise pickle.loads(pickle.dumps(error)) from None
        compiled_with.append((Path(model).name, options.ignore_keys))
        return light_demo

    monkeypatch.setattr(local_opener, "compiled", compiled)

    def serve(ignored: tuple[str, ...], *names: str) -> None:
        opener = LocalOpener(LocalOptions(ignore_keys=ignored))
        for name in names:
            asyncio.run(opener.prepare(str(tmp_path / name), name))
        opener.require_ignored_keys()

    serve(("odd", "odder"), "first", "second")
    assert compiled_with == [("first", ("odd",)), ("second", ("odder",))]
    with pytest.raises(UnsupportedModel, match="unknown key 'odder' = 7"):
        serve(("odd",), "first", "second")
    with pytest.raises(RequestError, match=r"--ignore-key od: .*has no such key; did you mean 'odd'\?"):
        serve(("odd", "od"), "first")
    with pytest.raises(RequestError, match=r"--ignore-key model_type: .* the compiler reads 'model_type'"):
        serve(("odd", "model_type"), "first")


@pytest.mark.usefixtures("cache")
def test_keys_to_ignore_reach_the_compiler_and_are_refused_for_a_bundle(
    light_demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requested = []

    async def compiled(_: str, options: CompileOptions, *__: object) -> Path:
        requested.append(options)
        raise ToolError("enough")

    monkeypatch.setattr(compile_process, "compiled", compiled)
    keys = ["--ignore-key", "odd", "--ignore-key", "odder"]
    assert main(["run", "demo", *PROMPT, *keys]) != 0
    assert requested == [default_options(("odd", "odder"))]
    capsys.readouterr()
    for command in (["run", str(light_demo), *PROMPT], ["inspect", str(light_demo), "--json"]):
        assert main([*command, *keys]) != 0
        assert "--ignore-key is for models" in capsys.readouterr().err


def test_a_bundle_in_a_folder_named_demo_is_run_itself(
    light_demo: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(light_demo, tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "demo", *PROMPT]) == 0
    assert text_of(capsys) == "27 + 58 = 85"
    assert not cache.exists()
    assert open_any(Path("demo")).manifest.target == "webgpu"
