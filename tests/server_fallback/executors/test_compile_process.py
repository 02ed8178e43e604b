"""Checkpoints become bundles in the cache. The tests of `nearfar serve` check that two servers compile a model once."""

from __future__ import annotations

import asyncio
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.runtime.errors import CheckpointError, OutputError, RequestError, ToolError, UnsupportedModel
from nearfar.compiler.store.bundles import bundle_path
from nearfar.compiler.store.place import cache_folder
from nearfar.server_fallback.executors.compile_process import Compiling, compile_once, compiled
from nearfar.server_fallback.processes.frames import write_frame
from nearfar.server_fallback.processes.worker_loop import STARTED

OPTIONS = CompileOptions(target="webgpu", context=64, activations=("float32",), self_test=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_variable_or_the_platform_determines_the_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("NEARFAR_CACHE", "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/where")
    assert cache_folder() == Path("/some/where/nearfar")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/nearfar"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library/Caches/nearfar"


def test_the_cache_folder_depends_on_every_input_of_a_bundle(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoints["qwen3"], folder)
    paths = [bundle_path(folder, OPTIONS)]
    assert bundle_path(folder, OPTIONS) == paths[0]
    assert paths[0].name.startswith("model-webgpu-default-")
    assert bundle_path(folder, replace(OPTIONS, quantization="q8f16")).name.startswith("model-webgpu-q8f16-")
    paths += [
        bundle_path(folder, replace(OPTIONS, **change)) for change in ({"context": 32}, {"target": "cpu"}, {"kv": "q8"})
    ]
    config = folder / "config.json"
    config.write_text(config.read_text() + " ")
    paths.append(bundle_path(folder, OPTIONS))
    # The weights' header and size stay as they are.
    os.utime(folder / "model.safetensors", (1, 1))
    paths.append(bundle_path(folder, OPTIONS))
    (folder / "params_shard_0.bin").write_bytes(b"weights")
    paths.append(bundle_path(folder, OPTIONS))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    paths.append(bundle_path(folder, OPTIONS))
    for name in ("tokenizer.model", "merges.txt", "vocab.txt", "spm.model"):
        (folder / name).write_text("a vocabulary")
        paths.append(bundle_path(folder, OPTIONS))
    assert len(set(paths)) == len(paths)
    before = paths[-1]
    (folder / "notes.txt").write_text("for people")
    assert bundle_path(folder, OPTIONS) == before


@pytest.mark.usefixtures("cache")
def test_another_gguf_file_of_the_same_name_has_another_bundle(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF one")
    first = bundle_path(file, OPTIONS)
    assert bundle_path(file, OPTIONS) == first
    file.write_bytes(b"GGUF another")
    assert bundle_path(file, OPTIONS) != first


@pytest.mark.usefixtures("cache")
def test_a_cached_bundle_is_found_without_another_process(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    models = [tiny_checkpoints["qwen3"], file]
    paths = [bundle_path(model, OPTIONS) for model in models]
    for path in paths:
        path.mkdir(parents=True)
        (path / "manifest.json").touch()

    def none(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(subprocess, "Popen", none)
    assert [asyncio.run(compiled(str(model), OPTIONS)) for model in models] == paths


@pytest.mark.usefixtures("cache")
def test_the_compilers_errors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "none"}')
    with pytest.raises(UnsupportedModel, match="'none' is not supported"):
        asyncio.run(compiled(str(tmp_path), OPTIONS))


@pytest.mark.parametrize("folder", ["/proc/nearfar", "/proc/sys"], ids=["cannot be made", "cannot be written"])
def test_a_cache_that_cannot_be_written_is_an_error_that_names_the_variable(
    folder: str, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/sys").is_dir():
        pytest.skip("there is no /proc, where not even root may write")
    monkeypatch.setenv("NEARFAR_CACHE", folder)
    with pytest.raises(OutputError, match=f"{folder}: compiled models cannot be stored here: .*set NEARFAR_CACHE"):
        compile_once(str(tiny_checkpoints["qwen3"]), OPTIONS)


def test_errors_keep_their_kind_and_details() -> None:
    for error in (RequestError("a", param="x"), CheckpointError("b")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.message, again.details) == (type(error), error.message, error.details)


def test_a_compiler_that_is_cancelled_is_ended_and_leaves_nothing(
    tiny_checkpoints: Mapping[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache.mkdir()
    with (tmp_path / "messages").open("wb") as messages:
        for message in (STARTED, Compiling(cache / "place"), ("kernels", 0, 9)):
            write_frame(messages, message)
    # A script in place of Python: it starts to write like the compiler, and never ends.
    stand_in = tmp_path / "python"
    begin = f"mkdir '{cache}/.place.partial'; cat {tmp_path}/messages; exec sleep 60"
    stand_in.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{begin}\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))

    async def cancel() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(compiled(str(tiny_checkpoints["llama"]), OPTIONS, lambda *_: began.set()))
        await asyncio.wait_for(began.wait(), 30)
        assert len(list(cache.iterdir())) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert list(cache.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.usefixtures("cache")
def test_a_compiler_that_dies_is_an_error(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ToolError, match=r"exited without a message \(status 1\)"):
        asyncio.run(compiled(str(tiny_checkpoints["llama"]), OPTIONS))
