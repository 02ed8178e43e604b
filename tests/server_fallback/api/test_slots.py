"""/slots and id_slot, over a real engine: slots are saved, and restored by a server that is started later."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgi import ask, ask_app, ask_of, run
from fake_models import FakeModels
from fastapi import FastAPI

from nearfar.compiler.bundle.folder import Bundle, open_bundle
from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.model import TokenModel
from nearfar.server_fallback.engine.token_engine import TokenEngine
from nearfar.server_fallback.executors.local import LocalExecutor
from nearfar.server_fallback.executors.local_opener import slot_files_of
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.slot_files import SlotFiles
from nearfar.server_fallback.executors.slots import Slots
from nearfar.server_fallback.executors.text_model import TextModel

PROMPT = [(7 * number) % 90 + 3 for number in range(40)]
PAGE = 16
ASKED = {
    "prompt": PROMPT, "n_predict": 12, "temperature": 0, "ignore_eos": True, "return_tokens": True,
    "cache_prompt": True, "id_slot": 1,
}  # fmt: skip
MOST_BYTES = 1 << 20


@pytest.fixture(scope="module")
def bundle(compile_numpy: Callable[..., Path]) -> Bundle:
    return open_bundle(compile_numpy("qwen3", "q4f16", self_test=False))


class Server:
    """A server with the model "fake"."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def get(self, path: str) -> Any:
        return (await ask_app(self._app, "GET", path)).json()

    async def post(self, path: str, body: object) -> Any:
        return (await ask_app(self._app, "POST", path, body)).json()

    async def slot(self, number: int, action: str, name: str | None = "a.bin") -> Any:
        return await self.post(f"/slots/{number}?action={action}", {} if name is None else {"filename": name})

    async def refusal(self, number: int, action: str, name: str | None = "a.bin") -> Any:
        """The code of the error."""
        return (await self.slot(number, action, name))["error"]["code"]


@asynccontextmanager
async def started(opened: Bundle, folder: Path, size_bytes: int = MOST_BYTES, **model: Any) -> AsyncIterator[Server]:
    runner = ReferenceRunner(opened, activation="float32", limits=Limits(tokens=32, sequences=4, rows=4, pages=32))
    engine = TokenEngine(runner, replace(TokenModel.of(opened.manifest), **model))
    slots = Slots(engine, SlotFiles(folder, size_bytes), 4, MOST_BYTES)
    executor: Any = LocalExecutor(engine, TextModel.of(opened, "fake"), slots=slots)
    try:
        yield Server(create_app(FakeModels(executor), ApiConfig(is_local=True)))
    finally:
        await executor.close()


def test_a_later_server_continues_from_a_restored_slot(bundle: Bundle, tmp_path: Path) -> None:
    async def work() -> None:
        async with started(bundle, tmp_path) as server:
            first = await server.post("/completion", ASKED)
            assert (first["id_slot"], first["tokens_predicted"], len(first["tokens"])) == (1, 12, 12)
            assert (first["timings"]["cache_n"], first["timings"]["prompt_n"]) == (0, 40)
            slots = await server.get("/slots")
            assert [(slot["id"], slot["n_tokens"]) for slot in slots] == [(0, 0), (1, 52), (2, 0), (3, 0)]
            assert not any(slot["is_processing"] for slot in slots)
            assert (await server.get("/props"))["total_slots"] == 4
            saved = await server.slot(1, "save")
            # Whole pages of the 51 tokens that were computed.
            assert (saved["id_slot"], saved["filename"], saved["n_saved"]) == (1, "a.bin", 3 * PAGE)
            assert saved["n_written"] == (tmp_path / "a.bin").stat().st_size
            assert saved["timings"]["save_ms"] >= 0
        async with started(bundle, tmp_path) as server:
            restored = await server.slot(0, "restore")
            assert (restored["n_restored"], restored["n_read"]) == (3 * PAGE, saved["n_written"])
            assert restored["timings"]["restore_ms"] >= 0
            again = await server.post("/completion", {**ASKED, "id_slot": 0})
            assert again["tokens"] == first["tokens"]
            assert (again["tokens_cached"], again["timings"]["cache_n"], again["timings"]["prompt_n"]) == (32, 32, 8)
            # The whole answer, as the beginning of a longer prompt.
            longer = await server.post("/completion", {**ASKED, "prompt": PROMPT + first["tokens"], "id_slot": 2})
            assert longer["timings"]["cache_n"] == 3 * PAGE
            assert await server.slot(2, "erase", None) == {"id_slot": 2, "n_erased": 64}
            assert (await server.get("/slots"))[2]["n_tokens"] == 0

    run(work())
    assert os.listdir(tmp_path) == ["a.bin"]


def test_requests_without_a_slot_get_one_that_they_continue(bundle: Bundle, tmp_path: Path) -> None:
    async def work() -> None:
        async with started(bundle, tmp_path) as server:
            more = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "model": "fake", "ignore_eos": True}
            other = [each + 1 for each in PROMPT]
            await server.post("/v1/completions", {**more, "id_slot": 2})
            await server.post("/v1/completions", {**more, "prompt": other})
            await server.post("/v1/completions", {**more, "prompt": PROMPT[:30], "stream": False})
            await server.post("/v1/completions", {**more, "prompt": [PROMPT, other], "id_slot": -1})
            assert [slot["n_tokens"] for slot in await server.get("/slots")] == [42, 0, 42, 0]
            chat = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "id_slot": 3}
            await server.post("/v1/chat/completions", {**chat, "cache_prompt": True})
            assert (await server.get("/slots"))[3]["n_tokens"] > 1
            assert (await server.post("/completion", {**ASKED, "id_slot": 4}))["error"]["code"] == "invalid_slot"

    run(work())


def test_files_that_do_not_fit_are_refused_and_the_slot_stays(bundle: Bundle, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "slots"
    folder.mkdir()
    outside.write_bytes(b"mine")

    async def work() -> None:
        async with started(bundle, folder) as server:
            assert await server.refusal(1, "save") == "slot_empty"
            await server.post("/completion", ASKED)
            for name in (
                "../a",
                "/etc/passwd",
                "",
                ".",
                "..",
                ".a",
                "a/b",
                "a\\b",
                "a\0b",
                "-a",
                "a" * 200,
                "ä",
                "a\n",
            ):
                assert await server.refusal(1, "save", name) == "invalid_filename", name
                assert await server.refusal(1, "restore", name) == "invalid_filename", name
            (folder / "link").symlink_to(outside)
            (folder / "folder").mkdir()
            os.mkfifo(folder / "pipe")
            for name in ("link", "folder", "pipe", "none"):
                assert await server.refusal(1, "restore", name) == "slot_file_not_found"
            # The link is replaced, not followed.
            await server.slot(1, "save", "link")
            assert outside.read_bytes() == b"mine"
            assert not (folder / "link").is_symlink()
            assert await server.refusal(1, "save", "folder") == "slot_file_not_written"
            whole = (folder / "link").read_bytes()
            for name, content in (
                ("flipped", bytes([*whole[:-40], whole[-40] ^ 1, *whole[-39:]])),
                ("cut", whole[:-9]),
            ):
                (folder / name).write_bytes(content)
                assert await server.refusal(1, "restore", name) == "slot_file_damaged"
            (folder / "text").write_text("a text")
            assert await server.refusal(1, "restore", "text") == "slot_file_damaged"
            (folder / "large").write_bytes(bytes(MOST_BYTES + 1))
            assert await server.refusal(1, "restore", "large") == "slot_file_too_large"
            (folder / "large").unlink()
            assert await server.refusal(4, "save") == "invalid_slot"
            for action in ("swap", ""):
                assert await server.refusal(1, action) == "invalid_value"
            assert await server.refusal(1, "save", None) == "invalid_value"
            most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most[1]))
            try:
                assert await server.refusal(1, "save", "b.bin") == "slot_file_not_written"
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, most)
            assert not (folder / "b.bin").exists()
            assert not [name for name in os.listdir(folder) if name.startswith(".")]
            assert (await server.slot(1, "save", "b.bin"))["n_saved"] == 3 * PAGE
        size = (folder / "b.bin").stat().st_size
        for name in ("flipped", "cut", "text"):
            (folder / name).unlink()
        async with started(bundle, folder, size_bytes=2 * size + 100, bundle="0" * 64) as server:
            assert await server.refusal(1, "restore", "b.bin") == "slot_file_other_model"
            await server.post("/completion", ASKED)
            assert await server.refusal(1, "save", "c.bin") == "slot_files_full"
            # A file that is replaced does not count.
            assert (await server.slot(1, "save", "b.bin"))["n_saved"] == 3 * PAGE

    run(work())


def test_slots_need_a_folder_and_an_admin(tmp_path: Path) -> None:
    for method, path, body in (("GET", "/slots", None), ("POST", "/slots/0?action=erase", {})):
        answer = ask(method, path, body, FakeModels(), ApiConfig(is_local=True))
        assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")
    for name, own, code in (("fake", "fake", "slots_not_supported"), ("x", "y", "invalid_value")):
        asked = f"/slots/0?action=erase&model={name}"
        answer = ask("POST", asked, {"model": own}, FakeModels(), ApiConfig(is_local=True))
        assert answer.json()["error"]["code"] == code
    assert ask_of(FakeModels().fake, "/slots/0?action=erase", {}).status_code == 403
    with pytest.raises(RequestError, match="is not a folder"):
        slot_files_of(LocalOptions(slot_save_path=tmp_path / "none"))
    with pytest.raises(RequestError, match="excludes --front-ends"):
        slot_files_of(LocalOptions(slot_save_path=tmp_path, shared=True))
