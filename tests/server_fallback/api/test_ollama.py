"""Ollama's API: its own client in Python, unchanged, and what it does not send."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import math
from collections.abc import Callable, Coroutine
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from asgi import Held, ask, run
from conftest import lacks
from fake_models import FakeExecutor, FakeModels
from fake_source import executor, reasoner
from fastapi import FastAPI
from waiting import until

from nearfar.compiler.demo import CHECKPOINT
from nearfar.compiler.runtime.errors import QueueFull
from nearfar.compiler.store.model import StoredModel
from nearfar.compiler.store.store import Store
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import read_keys
from nearfar.server_fallback.executors.executor import Executor, Opening
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.executors.stored_models import StoredModels
from nearfar.server_fallback.option_types import read_duration
from nearfar.server_fallback.schema.chat import ChatCompletionRequest, ImagePart
from nearfar.server_fallback.schema.completions import CompletionRequest

HI: Any = [{"role": "user", "content": "hi"}]
LOCAL = ApiConfig(is_local=True)


def lines_of(response: httpx.Response) -> list[Any]:
    return [json.loads(line) for line in response.text.splitlines()]


def client_of(app: FastAPI) -> Any:
    """Ollama's own client."""
    try:
        import ollama
    except ImportError:
        lacks("the package ollama is not installed")
    return ollama.AsyncClient("http://test", transport=httpx.ASGITransport(app))


def with_client(models: FakeModels, test: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(client_of(create_app(models, LOCAL)))

    run(main())


# --- Ollama's client ---


def test_the_client_chats() -> None:
    models = FakeModels()

    async def test(client: Any) -> None:
        options = {"temperature": 0.5, "num_predict": 9, "top_k": 3, "stop": ["x"], "seed": 7, "repeat_penalty": 1.2}
        answer = await client.chat("fake", HI, options=options, logprobs=True, top_logprobs=1)
        assert (answer.message.role, answer.message.content, answer.message.thinking) == ("assistant", "Hello!", None)
        assert (answer.model, answer.done, answer.done_reason) == ("fake", True, "stop")
        assert (answer.prompt_eval_count, answer.eval_count) == (5, 3)
        assert answer.total_duration >= answer.load_duration + answer.prompt_eval_duration + answer.eval_duration > 0
        assert (answer.logprobs[0].token, answer.logprobs[0].top_logprobs[0].logprob) == ("Hel", -0.5)
        (asked,) = models.fake.requests
        assert isinstance(asked, ChatCompletionRequest)
        assert (asked.temperature, asked.top_p, asked.max_tokens, asked.top_k) == (0.5, 0.9, 9, 3)
        assert (asked.stop, asked.seed, asked.repetition_penalty, asked.stream) == (["x"], 7, 1.2, False)
        parts = [part async for part in await client.chat("fake", HI, stream=True)]
        assert [part.message.content for part in parts] == ["Hel", "lo", "!", ""]
        assert [part.done for part in parts] == [False, False, False, True]
        assert (parts[-1].done_reason, parts[-1].eval_count) == ("stop", 3)

    with_client(models, test)


def test_the_client_generates() -> None:
    models = FakeModels()

    async def test(client: Any) -> None:
        answer = await client.generate("fake", "hi", system="Be kind.")
        assert (answer.response, answer.done_reason) == ("Hello!", "stop")
        raw = [part.response async for part in await client.generate("fake", "<s>hi", raw=True, stream=True)]
        assert raw == ["Hel", "lo", "!", ""]
        first, second = models.fake.requests
        assert isinstance(first, ChatCompletionRequest)
        assert [(each.role, each.content) for each in first.messages] == [("system", "Be kind."), ("user", "hi")]
        assert isinstance(second, CompletionRequest)
        assert (second.prompt, second.split_special_tokens) == ("<s>hi", False)

    with_client(models, test)


def test_the_client_calls_tools() -> None:
    def weather(city: str) -> str:
        """Tell the weather.

        Args:
          city: a city
        """
        return city

    models = FakeModels(FakeExecutor(pieces=('{"city": ', '"Lima"}')))

    async def test(client: Any) -> None:
        history = [
            *HI,
            {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}]},
            {"role": "tool", "tool_name": "weather", "content": "mild"},
        ]
        answer = await client.chat("fake", history, tools=[weather])
        (call,) = answer.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("weather", {"city": "Lima"})
        assert (answer.message.content, answer.done_reason) == ("", "stop")
        parts = [part async for part in await client.chat("fake", history, tools=[weather], stream=True)]
        (streamed,) = [part.message.tool_calls for part in parts if part.message.tool_calls]
        assert streamed[0].function.arguments == {"city": "Lima"}
        asked = models.fake.requests[0]
        assert isinstance(asked, ChatCompletionRequest)
        _, called, result = asked.messages
        assert called.tool_calls is not None
        assert json.loads(called.tool_calls[0].function.arguments) == {"city": "Rome"}
        assert (result.role, result.tool_call_id) == ("tool", called.tool_calls[0].id)
        assert asked.tools is not None
        assert asked.tools[0].function.parameters == {
            "type": "object",
            "required": ["city"],
            "properties": {"city": {"type": "string", "description": "a city"}},
        }

    with_client(models, test)


def test_the_client_sends_formats_and_pictures() -> None:
    picture = b"\x89PNG\r\n"
    models = FakeModels()

    async def test(client: Any) -> None:
        await client.chat("fake", [{"role": "user", "content": "what?", "images": [picture]}], format="json")
        await client.generate("fake", "what?", images=[picture], format={"type": "object"})
        first, second = models.fake.requests
        assert isinstance(first, ChatCompletionRequest)
        assert isinstance(second, ChatCompletionRequest)
        assert (first.response_format.type, second.response_format.type) == ("json_object", "json_schema")  # type: ignore[union-attr]
        for asked in (first, second):
            part = asked.messages[-1].content[0]  # type: ignore[index]
            assert isinstance(part, ImagePart)
            assert part.image_url.url == f"data:image/png;base64,{base64.b64encode(picture).decode()}"

    with_client(models, test)


def test_the_client_embeds() -> None:
    async def test(client: Any) -> None:
        answer = await client.embed("fake", ["a"])
        assert (answer.embeddings, answer.prompt_eval_count) == ([[0.5, -1.0]], 3)
        assert (await client.embeddings("fake", "a")).embedding == [0.5, -1.0]

    with_client(FakeModels(), test)


def test_the_client_gets_errors_with_their_status() -> None:
    models = FakeModels(FakeExecutor(error=QueueFull("full"), error_at=2))

    async def test(client: Any) -> None:
        import ollama

        async def refused(**request: Any) -> tuple[int, str]:
            with pytest.raises(ollama.ResponseError) as raised:
                await client.chat(**{"model": "fake", "messages": HI, **request})
            return raised.value.status_code, raised.value.error

        assert await refused() == (429, "full")
        assert await refused(model="nope") == (404, "the model 'nope' does not exist here; available: fake, other/name")
        assert (await refused(options={"tempature": 1}))[1] == "Unknown parameter: 'options.tempature'."
        assert (
            "num_ctx is 300, but fake was loaded with a context of 256" in (await refused(options={"num_ctx": 300}))[1]
        )
        stream = await client.chat("fake", HI, stream=True)
        assert [(await anext(stream)).message.content for _ in range(2)] == ["Hel", "lo"]
        with pytest.raises(ollama.ResponseError, match="full"):
            await anext(stream)

    with_client(models, test)


def test_the_client_sees_reasoning_apart_and_switches_it(tmp_path: Path) -> None:
    thinker, source = reasoner(tmp_path, "<think>\nhm\n</think>\n\nyes")
    models = FakeModels(thinker)  # type: ignore[arg-type]

    async def test(client: Any) -> None:
        answer = await client.chat("fake", HI, think=True)
        assert (answer.message.thinking, answer.message.content) == ("hm", "yes")
        parts = [part.message async for part in await client.chat("fake", HI, stream=True)]
        assert "".join(part.thinking or "" for part in parts) == "hm"
        assert "".join(part.content or "" for part in parts) == "yes"
        await client.chat("fake", HI, think=False)
        assert bytes(token for token in source.requests[-1].prompt_ids if token < 256).endswith(b"\n\n\n\n")

    with_client(models, test)


def test_thinking_is_refused_by_a_model_that_does_not_reason(tmp_path: Path) -> None:
    plain, _ = executor(tmp_path, "yes")
    models = FakeModels(plain)  # type: ignore[arg-type]
    response = ask("POST", "/api/chat", {"model": "fake", "messages": HI, "think": True}, models)
    assert (response.status_code, response.json()["error"][:30]) == (400, "think: fake does not reason be")
    response = ask("POST", "/api/chat", {"model": "fake", "messages": HI, "think": False, "stream": False}, models)
    assert response.json()["message"]["content"] == "yes"


# --- the store ---


class Opener:
    def __init__(self) -> None:
        self.opened = list[str]()
        self.preparing = list[str]()
        self.may_open: asyncio.Event | None = None

    async def prepare(self, model: str, name: str | None) -> Opening:
        async def open_it() -> Executor:
            self.preparing.append(model)
            if self.may_open is not None:
                await self.may_open.wait()
            self.opened.append(model)
            made: Executor = FakeExecutor()
            return made

        return Opening(name or model, 1000, open_it)


class Served:
    """An app with a store that has the model "base"."""

    def __init__(self, folder: Path, config: ApiConfig = LOCAL) -> None:
        self.store, self.opener = Store(folder / "store"), Opener()
        self.store.pull("demo", "base")
        self.models = StoredModels(Registry(self.opener), self.store)
        self.app = create_app(self.models, config)

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as client:
            content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            return await client.request(method, path, content=content, headers=given)


def test_the_client_manages_the_store(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        client = client_of(served.app)
        # Nothing is loaded, but a request would load "base".
        assert (await served.ask("GET", "/health/ready")).json()["status"] == "ready"
        assert (await served.ask("GET", "/v2/health/ready")).status_code == 200
        statuses = [
            each.status async for each in await client.create("chef", from_="base", system="Cook.", stream=True)
        ]
        assert (statuses[0], statuses[-1]) == ("creating the model", "success")
        assert (await client.copy("chef", "own/cook:tag")).status == "success"
        listed = (await client.list()).models
        assert [each.model for each in listed] == ["own/cook:tag", "chef:latest", "base:latest"]
        assert listed[0].details.parameter_size == "869.50K"
        assert listed[0].digest == listed[1].digest != listed[2].digest
        shown = await client.show("own/cook:tag")
        assert (shown.capabilities, shown.modelinfo["general.architecture"]) == (["completion"], "llama")
        assert "SYSTEM Cook." in shown.modelfile
        assert shown.template == served.store.get("base").details.template
        assert (await client.chat("chef", HI)).message.content == "Hello!"
        (running,) = (await client.ps()).models
        assert (running.model, running.context_length, running.size) == ("chef:latest", 256, 1000)
        assert (await client.delete("chef")).status == "success"
        assert (await client.ps()).models == []
        assert [each.model for each in (await client.list()).models] == ["own/cook:tag", "base:latest"]
        assert (await client.pull("demo")).status == "success"
        assert served.store.has("demo")
        for each in ("own/cook:tag", "base", "demo"):
            await client.delete(each)
        assert (await served.ask("GET", "/health/ready")).json()["status"] == "not ready"

    run(test())


def test_each_model_has_a_digest_for_ollama_s_command_line() -> None:
    """Which prints the first 12 digits, also of a model whose content the server does not know."""

    async def test(client: Any) -> None:
        digests = [each.digest for each in (await client.list()).models]
        assert {len(each) for each in digests} == {64}

    with_client(FakeModels(), test)


def test_a_client_that_leaves_while_its_model_loads_is_not_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        served.opener.may_open = asyncio.Event()
        body = {"model": "base", "messages": HI, "keep_alive": 0}
        leaves, stays = (Held(served.app, "/api/chat", body) for _ in range(2))
        late = {"x-request-timeout-ms": "1"}
        await until(lambda: served.opener.preparing == ["base"])
        assert (await served.ask("POST", "/api/chat", body, **late)).status_code == 503
        leaves.go()
        await leaves.task
        assert served.models.loaded() == []
        served.opener.may_open.set()
        await stays.task
        assert (await stays.sent.get())["status"] == 200
        await until(lambda: served.models.states() == {})
        assert served.opener.opened == ["base"]

    run(test())


def test_the_client_uploads_files(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        client = client_of(served.app)
        names = [path.name for path in CHECKPOINT.iterdir() if path.is_file()]
        files = {name: await client.create_blob(CHECKPOINT / name) for name in names}
        head = await served.ask("HEAD", f"/api/blobs/{files['config.json']}")
        assert (head.status_code, (await served.ask("HEAD", f"/api/blobs/sha256:{'0' * 64}")).status_code) == (200, 404)
        await client.create("own", files=files, parameters={"temperature": 0})
        own = served.store.get("own")
        served.store.verify(own)
        assert own.parameters.given() == {"temperature": 0.0}
        # The model has the bytes now: nothing is sent or stored twice.
        assert list((served.store.folder / "downloads").iterdir()) == []
        head = await served.ask("HEAD", f"/api/blobs/{files['config.json']}")
        again = await served.ask("POST", f"/api/blobs/{files['config.json']}")
        assert (head.status_code, again.status_code) == (200, 201)
        await client.create("twin", files=files)
        twin = served.store.get("twin")
        served.store.verify(twin)
        assert twin.size_bytes == own.size_bytes
        assert list((served.store.folder / "downloads").iterdir()) == []

    run(test())


def test_a_model_is_created_though_another_one_of_the_same_files_is_complete_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Store.create_of_files

    def late(store: Store, *arguments: Any) -> StoredModel:
        for upload in (store.folder / "downloads").glob("upload-*"):
            upload.unlink()
        return create(store, *arguments)

    async def test() -> None:
        served = Served(tmp_path)
        client = client_of(served.app)
        files = {path.name: await client.create_blob(path) for path in CHECKPOINT.iterdir() if path.is_file()}
        monkeypatch.setattr(Store, "create_of_files", late)
        await client.create("own", files=files)
        served.store.verify(served.store.get("own"))
        assert list((served.store.folder / "downloads").iterdir()) == []

    run(test())


def test_uploads_with_other_bytes_and_names_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        digest = sha256(b"right").hexdigest()
        wrong = await served.ask("POST", f"/api/blobs/sha256:{digest}", b"wrong")
        assert (wrong.status_code, wrong.json()["error"].split(",")[1]) == (400, f" not {digest}; send it again")
        for name in ("sha256:..%2f..%2fx", "sha256:0", "md5:00", f"sha256:{'0' * 63}g"):
            assert (await served.ask("POST", f"/api/blobs/{name}", b"x")).status_code in (400, 404, 405)
        assert list((served.store.folder / "downloads").iterdir()) == []
        await served.ask("POST", f"/api/blobs/sha256:{digest}", b"right")
        body = {"model": "own", "files": {"../../config.json": f"sha256:{digest}"}, "stream": False}
        answer = await served.ask("POST", "/api/create", body)
        assert (answer.status_code, answer.json()["error"].partition(" a ")[0]) == (
            400,
            "files: '../../config.json' is not",
        )
        # The error names the file as its sender does, and no folder of this machine.
        for name in ("x.gguf", "config.json"):
            await served.ask("POST", f"/api/blobs/sha256:{digest}", b"right")
            body["files"] = {name: f"sha256:{digest}"}
            error = (await served.ask("POST", "/api/create", body)).json()["error"]
            assert error.startswith(f"{name}: ")
            assert str(tmp_path) not in error
        body["files"] = {"config.json": f"sha256:{'1' * 64}"}
        assert "was not uploaded" in (await served.ask("POST", "/api/create", body)).json()["error"]

    run(test())


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        digest = sha256(b"right").hexdigest()

        def full(_: int) -> NoReturn:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("nearfar.server_fallback.api.ollama_uploads.os.fsync", full)
            answer = await served.ask("POST", f"/api/blobs/sha256:{digest}", b"right")
        assert (answer.status_code, "the disk is full" in answer.json()["error"]) == (507, True)
        assert list((served.store.folder / "downloads").iterdir()) == []

    run(test())


def test_a_model_that_stays_for_ever_has_a_time_at_which_it_leaves(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        for keep_alive in (1e300, "99999999999h", -1, 10**15):
            await served.ask("POST", "/api/generate", {"model": "base", "keep_alive": keep_alive})
            (running,) = (await served.ask("GET", "/api/ps")).json()["models"]
            assert int(running["expires_at"][:4]) > 2100
        await served.models.close(0.0)

    run(test())


def test_nobody_reads_files_or_addresses_through_a_pull(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        for name in ("/etc/passwd", "../x", "./x.gguf", "http://127.0.0.1/x.gguf", "a/b/c/d", "hf.co/a"):
            for path, body in (("/api/pull", {"model": name}), ("/api/create", {"model": "x", "from": name})):
                answer = await served.ask("POST", path, body)
                assert (answer.status_code, "is not a name on the Hugging Face Hub" in answer.text) == (400, True)

    run(test())


def test_a_quantization_by_ollama_s_name_is_ours_or_refused_by_its_name(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        for name, status in (("q8_0", 200), ("F16", 200), ("q4f16", 200), ("q4_K_M", 400)):
            answer = await served.ask("POST", "/api/create", {"model": name, "from": "base", "quantize": name})
            assert answer.status_code == status
        assert "'q4_K_M' is not known; known: q4f16, q4f32" in answer.json()["error"]
        assert {each.name: each.quantization for each in served.store.models()} == {
            "base": None, "q8_0": "q8f16", "F16": "f16", "q4f16": "q4f16",
        }  # fmt: skip

    run(test())


def test_an_error_of_the_store_is_a_line_of_a_stream(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        answer = await served.ask("POST", "/api/create", {"model": "x", "from": "base", "template": "{% for %}"})
        first, last = lines_of(answer)
        assert (answer.status_code, first["status"], "error" in last) == (200, "creating the model", True)
        assert (await served.ask("DELETE", "/api/delete", {"name": "nope"})).status_code == 404
        for body, says in (({}, "must name"), ({"model": "a", "name": "b"}, "differ")):
            refused = await served.ask("DELETE", "/api/delete", body)
            assert refused.status_code == 400
            assert says in refused.json()["error"]
        assert (await served.ask("POST", "/api/copy", {"source": "base", "destination": "../x"})).status_code == 400

    run(test())


def test_an_empty_prompt_loads_and_unloads(tmp_path: Path) -> None:
    async def test() -> None:
        served = Served(tmp_path)
        loaded = (await served.ask("POST", "/api/generate", {"model": "base", "keep_alive": "-1m"})).json()
        assert (loaded["response"], loaded["done"], loaded["done_reason"]) == ("", True, "load")
        assert served.models.loaded()[0].keep_seconds == math.inf
        unloaded = (await served.ask("POST", "/api/chat", {"model": "base", "messages": [], "keep_alive": 0})).json()
        assert (unloaded["message"]["content"], unloaded["done_reason"]) == ("", "unload")
        await until(lambda: served.models.loaded() == [])
        # Other APIs load models, too.
        answer = await served.ask(
            "POST", "/v1/chat/completions", {"model": "base", "messages": HI}, content_type="application/json"
        )
        assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
        assert served.opener.opened == ["base", "base"]

    run(test())


def test_a_request_uses_its_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, it would wait behind another one that waits until this model is idle."""
    used, using = list[str](), StoredModels.using

    def counted(models: StoredModels, name: str) -> Any:
        used.append(name)
        return using(models, name)

    monkeypatch.setattr(StoredModels, "using", counted)

    async def test() -> None:
        served = Served(tmp_path)
        asked: dict[str, dict[str, Any]] = {
            "/api/chat": {"messages": HI, "keep_alive": "1s", "stream": False},
            "/api/generate": {"prompt": "hi"},
            "/api/embed": {"input": "hi"},
            "/v1/responses": {"input": "hi", "stream": True},
        }
        for path, body in asked.items():
            answer = await served.ask("POST", path, {"model": "base", **body}, content_type="application/json")
            assert (answer.status_code, used) == (200, ["base"]), answer.text
            used.clear()
        await served.models.close(0.0)

    run(test())


def test_only_admins_change_a_store_that_others_reach(tmp_path: Path) -> None:
    keys = read_keys(None, {"NEARFAR_API_KEYS": "web=sk-web-12345678"})

    async def test() -> None:
        copy = {"source": "base", "destination": "x"}
        for config, status in ((ApiConfig(), 403), (ApiConfig(keys=keys), 401), (LOCAL, 200)):
            served = Served(tmp_path, config)
            assert (await served.ask("POST", "/api/copy", copy)).status_code == status
        # A page of another site cannot, either.
        assert (await served.ask("POST", "/api/copy", copy, origin="http://evil.example")).status_code == 403
        assert (
            await served.ask("POST", "/api/chat", {"model": "base"}, origin="http://evil.example")
        ).status_code == 415
        with_key = ApiConfig(keys=keys, is_local=True)
        served = Served(tmp_path, with_key)
        headers = {"authorization": "Bearer sk-web-12345678"}
        assert (await served.ask("POST", "/api/copy", copy, **headers)).status_code == 403

    run(test())


# --- what the client does not send ---


def test_a_body_of_any_type_is_read_and_streams_are_lines() -> None:
    body = {"model": "fake", "messages": HI}
    response = ask("POST", "/api/chat", body, content_type="application/x-www-form-urlencoded")
    assert response.headers["content-type"] == "application/x-ndjson"
    assert [line["message"]["content"] for line in lines_of(response)] == ["Hel", "lo", "!", ""]
    assert ask("POST", "/api/chat", b"{", content_type="text/plain").json()["error"].startswith("the body is not JSON")
    assert ask("GET", "/").text == "nearfar is running"
    assert ask("HEAD", "/").status_code == 200
    assert ask("GET", "/api/version").json()["version"]
    assert [each["name"] for each in ask("GET", "/api/tags").json()["models"]] == ["fake", "other/name"]
    assert (
        "start nearfar serve without a model" in ask("POST", "/api/pull", {"model": "a/b"}, None, LOCAL).json()["error"]
    )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"context": [1]}, "Unknown parameter: 'context'."),
        ({"keep_alive": "soon"}, "'keep_alive'"),
        ({"truncate": True}, "'truncate'"),
        ({"options": {"mirostat": 2}}, "'options.mirostat'"),
        ({"options": {"temperature": "hot"}}, "'options.temperature'"),
        ({"options": {"repeat_last_n": 64, "repeat_penalty": 1.1}}, "set repeat_last_n to -1"),
        ({"messages": [{"role": "user", "content": "a", "images": [""]}]}, "'messages[0].images[0]'"),
        ({"messages": [{"role": "boss", "content": "a"}]}, "'messages[0].role'"),
        ({"think": "very"}, "'think'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], error: str) -> None:
    response = ask("POST", "/api/chat", {"model": "fake", "messages": HI, **change})
    assert response.status_code == 400
    assert error in response.json()["error"]
    assert response.json().keys() == {"error"}


def test_a_lenient_server_drops_unknown_options() -> None:
    body = {"model": "fake", "messages": HI, "options": {"warmth": 3, "top_k": 2}, "colour": "red", "stream": False}
    models = FakeModels()
    response = ask("POST", "/api/chat", body, models, ApiConfig(lenient=True))
    assert response.json()["message"]["content"] == "Hello!"
    assert set(response.headers["x-nearfar-ignored"].split(", ")) == {"options.warmth", "colour"}
    assert models.fake.requests[0].top_k == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0, 0), (90, 90), (1.5, 1.5), (-1, math.inf), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("-1", math.inf),
     ("-5m", math.inf), ("0", 0), ("30", 30)],
)  # fmt: skip
def test_durations(given: float | str, seconds: float) -> None:
    assert read_duration(given) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "5 m", "5x", "1h-3m", "nan", "inf", "1e3"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a number of seconds"):
        read_duration(text)


def test_a_cut_off_call_is_left_out() -> None:
    models = FakeModels(FakeExecutor(pieces=('{"city": ', '"Li')))
    tools = [{"type": "function", "function": {"name": "weather"}}]
    response = ask("POST", "/api/chat", {"model": "fake", "messages": HI, "tools": tools, "stream": False}, models)
    assert "tool_calls" not in response.json()["message"]
