"""Bundles and folders opened for serving."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from answers import all_chunks
from draft_assistant import DraftAssistant
from draft_heads import DraftHeads
from plain_target import compile_plain
from tiny_whisper import SHORT_CONTEXT, make_whisper
from waiting import wait_until

from nearfar.compiler.bundle import folder
from nearfar.compiler.bundle.folder import Bundle, ExportBundle, open_bundle
from nearfar.compiler.bundle.signature import TrustedKey
from nearfar.compiler.runtime.audio.transcribe import LIMITS
from nearfar.compiler.runtime.errors import BundleError, CheckpointError, DeviceError, RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.executors import devices, local_opener, local_recipe
from nearfar.server_fallback.executors.devices import Gpu
from nearfar.server_fallback.executors.executor import Call, Executor, Opening, TellsAbilities, Transcribes
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.speech_executor import SpeechExecutor
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.targets import host_memory

CompileTiny = Callable[..., Path]
SMALL = LocalOptions(max_sequences=2, kv_memory_bytes=1 << 24)


@pytest.fixture
def bundle(compile_tiny: CompileTiny) -> Path:
    return compile_tiny("qwen3", "q4f16")


class CountedRunner(ReferenceRunner):
    open = 0
    limits_given: Limits

    def __init__(self, bundle: Bundle, *, limits: Limits) -> None:
        super().__init__(bundle, limits=limits, activation="float32")
        type(self).open += 1
        type(self).limits_given = limits

    def close(self) -> None:
        type(self).open -= 1
        super().close()


@pytest.fixture(autouse=True)
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference runner replaces the target's, because these tests are about opening runners."""
    CountedRunner.open = 0
    monkeypatch.setattr(local_recipe, "open_runner", lambda _, bundle, limits: CountedRunner(bundle, limits=limits))


def opened(model: str | Path, options: LocalOptions = SMALL, name: str | None = None) -> tuple[Opening, str]:
    """The prepared model, and some tokens after a prompt."""

    async def run() -> tuple[Opening, str]:
        opening = await LocalOpener(options).prepare(str(model), name)
        executor: Executor = await opening.open()
        request = CompletionRequest(model="m", prompt=[5, 6, 7, 5, 6, 7, 5, 6], max_tokens=6, seed=3)
        chunks = await all_chunks(executor, request, Call("r"))
        assert executor.state().memory_bytes == opening.memory_bytes
        await executor.close()
        return opening, "".join(choice.text for chunk in chunks for choice in chunk.choices)

    result = asyncio.run(run())
    assert CountedRunner.open == 0
    return result


def test_a_tokenizer_that_is_deleted_while_its_model_is_served_is_not_missed(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)

    async def run() -> None:
        executor: Executor = await (await LocalOpener(SMALL).prepare(str(copy), None)).open()
        # Unlike the runners of targets, the reference runner reads weights when it needs them.
        (copy / "tokenizer.json").unlink()
        assert isinstance(executor, TellsAbilities)
        assert executor.abilities().tokenizer_sha256
        request = CompletionRequest(model="m", prompt=[5, 6, 7], max_tokens=2, logprobs=1)
        assert (await all_chunks(executor, request, Call("r")))[-1].usage
        await executor.close()

    asyncio.run(run())


def test_the_opening_reports_how_many_answers_run_and_queue(bundle: Path) -> None:
    assert opened(bundle, replace(SMALL, max_waiting=5))[0].answers_at_once == 2 + 5


def test_bundles_are_read_on_one_thread(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread that checks a manifest keeps an interpreter of the shared script: 2.3 MB."""
    threads = list[int]()

    def open_any(path: Path, trusted: Sequence[TrustedKey]) -> Bundle | ExportBundle:
        threads.append(get_ident())
        # All of them begin before the first one has ended.
        wait_until(lambda: begun == 4)
        return folder.open_any(path, trusted)

    begun = 0

    async def run() -> None:
        opener = LocalOpener(SMALL)

        async def prepare() -> None:
            nonlocal begun
            begun += 1
            (await opener.prepare(str(bundle), None)).release()

        await asyncio.gather(*(prepare() for _ in range(4)))

    monkeypatch.setattr(local_opener, "open_any", open_any)
    asyncio.run(run())
    assert (len(threads), len(set(threads))) == (4, 1)
    assert get_ident() not in threads


def fails(kind: type[Exception], message: str, model: str | Path, options: LocalOptions = SMALL) -> None:
    with pytest.raises(kind, match=message):
        opened(model, options)
    assert CountedRunner.open == 0


def test_a_bundle_is_opened_under_its_folders_name_within_its_limits(bundle: Path) -> None:
    opening, _ = opened(bundle)
    assert opening.name == bundle.name
    assert opened(bundle, name="other")[0].name == "other"
    limits = CountedRunner.limits_given
    # There are additional rows for the drafts of clients.
    assert (limits.sequences, limits.rows, limits.tokens) == (2, 2 + 16, 64)
    assert limits.pages == 2 * open_bundle(bundle).manifest.pages_for(256)


@pytest.mark.parametrize("draft", ["ngram", "BUNDLE"])
def test_with_guesses_there_are_rows_for_them_and_the_same_answers(draft: str, bundle: Path) -> None:
    options = replace(SMALL, draft=str(bundle) if draft == "BUNDLE" else draft, draft_tokens=3)
    opening, text = opened(bundle, options)
    plain, plain_text = opened(bundle)
    assert text == plain_text
    assert opening.memory_bytes is not None
    assert plain.memory_bytes is not None
    assert opening.memory_bytes > plain.memory_bytes * (1.5 if draft == "BUNDLE" else 1)


@pytest.mark.parametrize("makes", [DraftHeads, DraftAssistant])
def test_with_heads_or_an_assistant_there_is_memory_for_rows_and_the_same_answers(
    makes: type[DraftHeads | DraftAssistant], tmp_path: Path
) -> None:
    assists = makes is DraftAssistant
    makes(tmp_path if assists else tmp_path / "checkpoint")
    assistant = tmp_path / "assistant" if assists else None
    path = compile_plain(tmp_path / "checkpoint", tmp_path / "bundle", "f32", 128, assistant=assistant).path
    plain, plain_text = opened(path)
    assert CountedRunner.limits_given.draft_pages == 0
    opening, text = opened(path, replace(SMALL, draft="heads", draft_tokens=3))
    limits = CountedRunner.limits_given
    assert (text, limits.draft_pages) == (plain_text, limits.pages)
    assert opening.memory_bytes is not None
    assert plain.memory_bytes is not None
    assert opening.memory_bytes > plain.memory_bytes


def test_a_bundle_that_cannot_be_opened_leaves_no_runner(
    bundle: Path, compile_tiny: CompileTiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fails(CheckpointError, "there is no such folder", tmp_path / "nothing")
    fails(CheckpointError, "has no config.json", tmp_path)
    fails(RequestError, "allow more with --kv-memory", bundle, replace(SMALL, kv_memory_bytes=1000))
    (tmp_path / "manifest.json").write_text("{}")
    fails(BundleError, "format version", tmp_path)
    fails(RequestError, "--draft heads: .* has no heads .* with its --assistant", bundle, replace(SMALL, draft="heads"))

    def no_memory(*_: Any, **__: Any) -> None:
        raise DeviceError("no memory")

    wrong = shutil.copytree(bundle, tmp_path / "wrong")
    manifest = json.loads((wrong / "manifest.json").read_text())
    manifest["tokenizer"]["chat_template"] = "{% for %}"
    (wrong / "manifest.json").write_text(json.dumps(manifest))
    fails(BundleError, "tokenizer.chat_template: has changed since chat_tree was made", wrong)
    monkeypatch.setattr(local_recipe, "TokenEngine", no_memory)
    fails(DeviceError, "no memory", bundle, replace(SMALL, draft=str(compile_tiny("qwen3", "q4f16"))))


def test_a_gpu_is_the_default_and_its_memory_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_gpu", lambda: None)
    assert devices.default_target() == "cpu"
    with pytest.raises(DeviceError, match="no NVIDIA GPU"):
        devices.default_arch("cuda")
    monkeypatch.setattr(devices, "host_memory_bytes", lambda: 40 * 10**9)
    # Not more than useful, at least one context, and at most a quarter of the memory.
    assert [devices.kv_memory_bytes("cpu", 0, context) // 10**9 for context in (0, 5 * 10**9, 50 * 10**9)] == [4, 5, 10]
    monkeypatch.setattr(devices, "TARGETS", ("cpu", "cuda"))
    monkeypatch.setattr(devices, "find_gpu", lambda: Gpu("sm_90", 80 * 10**9))
    assert devices.default_target() == "cuda"
    assert (devices.default_arch("cuda"), devices.default_arch("cpu")) == ("sm_90", None)
    assert devices.kv_memory_bytes("cuda", 10 * 10**9, 0) == 54 * 10**9
    with pytest.raises(RequestError, match="take 100,000,000,000 bytes, and the GPU has 80,000,000,000"):
        devices.kv_memory_bytes("cuda", 100 * 10**9, 0)
    assert devices.models_memory_bytes("cuda") == 72 * 10**9


def test_a_container_has_the_memory_of_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_memory, "CONTAINER_LIMITS", (tmp_path / "none",))
    whole = host_memory.host_memory_bytes()
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    monkeypatch.setattr(host_memory, "CONTAINER_LIMITS", (limit,))
    assert host_memory.host_memory_bytes() == whole
    limit.write_text("1000000\n")
    assert host_memory.host_memory_bytes() == 1_000_000
    assert devices.models_memory_bytes("cpu") == 900_000


def test_a_bundle_with_an_input_that_the_engine_does_not_provide_is_refused(bundle: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["plans"]["generate"]["inputs"]["pixels"] = {"shape": ["S", 3], "dtype": "float32"}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        BundleError, match="has input 'pixels', which this engine does not provide; use a newer nearfar"
    ):
        opened(folder)
    assert CountedRunner.open == 0


def test_a_model_of_sound_is_opened_in_the_main_process_only(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    make_whisper(tmp_path / "model")
    compile_plain(tmp_path / "model", tmp_path / "whisper", "f32", SHORT_CONTEXT)

    async def scenario() -> Executor:
        opening = await LocalOpener(SMALL).prepare(str(tmp_path / "whisper"), None)
        assert (opening.task, opening.answers_at_once) == ("transcribe", 1 + SMALL.max_waiting)
        executor = await opening.open()
        assert isinstance(executor, SpeechExecutor)
        assert executor.share is None
        await executor.close()
        # Front ends have it transcribe in the main process.
        shared = await (await LocalOpener(replace(SMALL, shared=True)).prepare(str(tmp_path / "whisper"), None)).open()
        assert isinstance(shared, SpeechExecutor)
        assert shared.share is not None
        assert shared.share.name == "whisper"
        await shared.close()
        return executor

    executor = asyncio.run(scenario())
    assert isinstance(executor, Transcribes)
    assert isinstance(executor, TellsAbilities)
    assert executor.abilities().sound
    assert CountedRunner.open == 0
    assert CountedRunner.limits_given.rows == LIMITS.rows
    memory = executor.state().memory_bytes
    # The keys and values of one window, for two layers, and the weights.
    assert memory is not None
    assert memory > 2 * 2 * 64 * 60 * 4 + 160_000 * 4
