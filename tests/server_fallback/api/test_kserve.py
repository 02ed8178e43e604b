"""The Open Inference Protocol over HTTP and gRPC, with NVIDIA's clients for Triton."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from asgi import ask, ask_app, run
from encoders import ModelsWithEncoders, encoders
from live_server import LiveServer, live_server
from tritonclient.utils import InferenceServerException
from waiting import WAIT_SECONDS, wait_until

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.store.store import Store
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.api.keys import ApiKey, Keys
from nearfar.server_fallback.engine.stats import BatchRecord, EngineStats, RequestRecord
from nearfar.server_fallback.executors.executor import (
    Executor,
    ExecutorState,
    ModelChange,
    Opening,
    SleepRequest,
    WakeRequest,
)
from nearfar.server_fallback.executors.model_table import ASLEEP
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.executors.stored_models import StoredModels
from nearfar.server_fallback.kserve.grpc_messages import DESCRIPTORS, MAX_FIELDS, message, parse_message
from nearfar.server_fallback.kserve.grpc_server import GrpcServer
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.models import LoadRequest, ModelCard

HALF = 0.5**0.5


class LoadedOnUse(ModelsWithEncoders):
    """Implements `LoadsOnUse` for one more model: "stored", which is loaded while a request uses it."""

    users = uses = 0

    @asynccontextmanager
    async def using(self, name: str) -> AsyncIterator[Any]:
        if name != "stored":
            yield await self.executor(name)
            return
        self.users, self.uses = self.users + 1, self.uses + 1
        try:
            yield self.encoders["embed"]
        finally:
            self.users -= 1

    def keep(self, name: str, seconds: float) -> None:
        raise AssertionError(name, seconds)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> LoadedOnUse:
    return LoadedOnUse(encoders=encoders(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def served(models: ModelsWithEncoders) -> Iterator[LiveServer]:
    with live_server(models, ApiConfig()) as server:
        yield server


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: LiveServer) -> Iterator[tuple[Any, Any]]:
    """The module of a client of Triton, and the client."""
    if request.param == "http":
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
            yield tritonclient.http, client
        return
    loop = served.loop
    server = GrpcServer(served.service, "127.0.0.1:0")
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            yield tritonclient.grpc, client
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()


def texts(module: Any, *given: str, name: str = "text", column: bool = False) -> Any:
    array = np.array([text.encode() for text in given], object)
    array = array.reshape(-1, 1) if column else array
    tensor = module.InferInput(name, array.shape, "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


def numbers(module: Any, name: str, values: Any, dtype: str = "INT64") -> Any:
    array = np.array(values, np.int64 if dtype == "INT64" else np.int32)
    tensor = module.InferInput(name, array.shape, dtype)
    tensor.set_data_from_numpy(array)
    return tensor


def test_triton_s_clients_read_health_and_metadata(client: tuple[Any, Any]) -> None:
    module, triton = client
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("rank")
    assert triton.is_model_ready("other/name", "1")
    as_json = {} if module is tritonclient.http else {"as_json": True}
    assert triton.get_server_metadata(**as_json)["name"] == "nearfar"
    model = triton.get_model_metadata("rank", "1", **as_json)
    assert [(each["name"], each["datatype"]) for each in model["inputs"]] == [
        ("text", "BYTES"),
        ("text_pair", "BYTES"),
        ("input_ids", "INT64"),
        ("attention_mask", "INT64"),
        ("token_type_ids", "INT64"),
    ]
    assert [int(size) for size in model["outputs"][0]["shape"]] == [-1, 1]
    config = triton.get_model_config("embed", **as_json)
    config = config.get("config", config)
    assert config["output"][0]["data_type"] == "TYPE_FP32"
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    with pytest.raises(InferenceServerException, match="no version '2'"):
        triton.get_model_metadata("rank", "2")


def test_a_model_is_loaded_by_the_request_that_needs_it(client: tuple[Any, Any], models: LoadedOnUse) -> None:
    module, triton = client
    before = models.uses
    assert triton.get_model_metadata("stored") is not None
    assert triton.get_model_config("stored") is not None
    assert triton.infer("stored", [texts(module, "ab")]).as_numpy("embeddings").shape == (1, 3)
    assert models.uses == before + 3
    wait_until(lambda: models.users == 0)


def test_triton_s_clients_send_texts_and_token_ids(client: tuple[Any, Any]) -> None:
    module, triton = client
    vectors = triton.infer("embed", [texts(module, "ab", "c")], request_id="7")
    assert vectors.as_numpy("embeddings") == pytest.approx(np.array([[HALF, HALF, 0], [0, 0, 1]], np.float32))
    output = module.InferRequestedOutput("embeddings")
    for dtype in ("INT32", "INT64"):
        padded = [
            numbers(module, "input_ids", [[97, 0, 0], [0, 97, 98]], dtype),
            numbers(module, "attention_mask", [[1, 0, 0], [0, 1, 1]], dtype),
        ]
        found = triton.infer("embed", padded, outputs=[output]).as_numpy("embeddings")
        assert found == pytest.approx(np.array([[1, 0, 0], [HALF, HALF, 0]], np.float32))
    pair = [texts(module, "a", "a", column=True), texts(module, "a", "b", name="text_pair", column=True)]
    assert triton.infer("rank", pair).as_numpy("scores") == pytest.approx(np.array([[0.731059], [0.268941]]), abs=1e-5)
    tags = triton.infer("tag", [texts(module, "ab", "b")]).as_numpy("token_scores")
    assert tags.shape == (2, 2, 2)
    assert tags[1, 1].tolist() == [0.0, 0.0]
    assert tags[0, 1] == pytest.approx([0.731059, 0.268941], abs=1e-5)


@pytest.mark.parametrize(
    ("model", "inputs", "match"),
    [
        ("none", {"text": ["a"]}, "not exist"),
        ("fake", {"text": ["a"]}, "only embedding models"),
        ("embed", {"text_pair": ["a"]}, "unknown input 'text_pair'"),
        ("embed", {}, "give either text or input_ids|at least one"),
        ("rank", {"text": ["a"]}, "give text_pair too"),
        ("rank", {"text": ["a"], "text_pair": ["a", "b"]}, "1 texts and text_pair has 2"),
        ("embed", {"text": [""]}, "is empty"),
        ("embed", {"text": ["a" * 5000]}, "maximum context length"),
        ("embed", {"text": ["a"] * 3000}, "at most 2048"),
        ("embed", {"input_ids": [[99999]]}, "token id 99999"),
        ("embed", {"input_ids": [[1, 2]], "attention_mask": [[1]]}, "must have the shape"),
        ("embed", {"input_ids": [[1, 2]], "attention_mask": [[0, 0]]}, "is empty"),
        ("embed", {"input_ids": [[1]], "attention_mask": [[2]]}, "0 for padding"),
    ],
)
def test_wrong_inputs_are_refused(client: tuple[Any, Any], model: str, inputs: dict[str, Any], match: str) -> None:
    module, triton = client
    given = [
        texts(module, *values, name=name) if name.startswith("text") else numbers(module, name, values)
        for name, values in inputs.items()
    ]
    with pytest.raises(InferenceServerException, match=match):
        triton.infer(model, given)


def test_parameters_shorten_texts_and_set_a_deadline(client: tuple[Any, Any]) -> None:
    module, triton = client
    long = [texts(module, "a" * 5000)]
    assert triton.infer("embed", long, parameters={"truncate": True}).as_numpy("embeddings").tolist() == [[1, 0, 0]]
    with pytest.raises(InferenceServerException, match="'beams' is not supported"):
        triton.infer("embed", long, parameters={"beams": 2})
    with pytest.raises(InferenceServerException, match="sequence_"):
        triton.infer("embed", long, sequence_id=3)
    with pytest.raises(InferenceServerException, match="unknown output 'scores'"):
        triton.infer("embed", [texts(module, "a")], outputs=[module.InferRequestedOutput("scores")])


def test_every_error_below_v2_can_be_read_by_triton_s_client(served: LiveServer, models: ModelsWithEncoders) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{served.port}") as client:
        for call in (
            client.get_trace_settings,
            client.get_cuda_shared_memory_status,
        ):
            with pytest.raises(InferenceServerException) as refused:
                call()
            assert "does not exist" in str(refused.value)
    limited = create_app(models, ApiConfig(allowed_hosts=("a.example",)))
    key = ApiKey("k", hashlib.sha256(b"secret").digest())
    keyed = create_app(models, ApiConfig(keys=Keys((key,))))
    app = create_app(models, ApiConfig(max_body_bytes=100))
    infer = "/v2/models/embed/infer"
    for asked, method, path, body, status in (
        (app, "DELETE", "/v2", None, 405),
        (app, "PUT", infer, None, 405),
        (app, "POST", infer, b"{", 400),
        (app, "POST", infer, b" " * 101, 413),
        (app, "GET", "/v2/", None, 404),
        (app, "GET", "/v2/models/none", None, 404),
        (limited, "POST", infer, b"{}", 403),
        (keyed, "POST", infer, b"{}", 401),
    ):
        answer = run(ask_app(asked, method, path, body))
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
        assert isinstance(answer.json()["error"], str)
    # Cohere's routes and all others have OpenAI's form.
    for path in ("/v2/embed", "/v2/rerank", "/v1/embeddings", "/v22"):
        assert run(ask_app(app, "POST", path, b"{")).json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("POST", "embed", 405, "use GET"),
        ("DELETE", "embed/versions/1", 405, "use GET"),
        ("GET", "embed/infer", 405, "use POST"),
        ("GET", "embed/versions/1/infer", 405, "use POST"),
        ("DELETE", "embed/infer", 405, "use POST"),
        ("POST", "embed/ready", 405, "use GET"),
        ("POST", "embed/versions/1/config", 405, "use GET"),
        ("GET", "embed/generate", 405, "use POST"),
        ("POST", "embed/versions/1/stats", 405, "use GET"),
        ("POST", "embed/trace", 404, "this address does not exist; a model has /infer, /generate, /generate_stream,"),
        ("GET", "embed/trace", 404, "this address does not exist"),
        ("POST", "none/trace", 404, "this address does not exist"),
        ("GET", "none/model", 404, "the model 'none/model' does not exist"),
        ("GET", "embed/versions/2", 404, "has no version '2'"),
    ],
)
def test_an_address_that_no_route_has_is_a_404_or_names_its_method(
    models: ModelsWithEncoders, method: str, path: str, status: int, words: str
) -> None:
    answer = ask(method, f"/v2/models/{path}", None, models)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert words in answer.json()["error"]
    if status == 405:
        assert answer.headers["Allow"] == words.removeprefix("use ")


def test_a_message_of_grpc_with_too_many_fields_is_not_parsed() -> None:
    request = message("ModelInferRequest")(model_name="m", id="x" * 300)
    texts = request.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents
    texts.extend([b"ab"] * 2048)
    for number in range(100):
        request.parameters[f"p{number}"].int64_param = number
    assert parse_message("ModelInferRequest", request.SerializeToString()) == request
    for field in (b"\x22\x00", b"\x2a\x00", b"\x3a\x02ab", b"\x50\x80\x01", b"\x55abcd", b"\x51abcdefgh"):
        parse_message("ModelInferRequest", field * MAX_FIELDS)
        with pytest.raises(RequestError, match="more than 4,096 fields"):
            parse_message("ModelInferRequest", field * (MAX_FIELDS + 1))
    # The fields of one tensor, too.
    texts.extend([b""] * MAX_FIELDS)
    with pytest.raises(RequestError, match="more than 4,096 fields"):
        parse_message("ModelInferRequest", request.SerializeToString())
    for broken in (b"\x22", b"\x22\xff", b"\xff" * 20, b"\x0a\x05ab"):
        with pytest.raises(RequestError, match="are not a ModelInferRequest"):
            parse_message("ModelInferRequest", broken)


def test_plain_json_is_answered_in_json(models: ModelsWithEncoders) -> None:
    app = create_app(models, ApiConfig())

    def infer(body: object, **headers: str) -> Any:
        return run(ask_app(app, "POST", "/v2/models/embed/versions/1/infer", body, **headers))

    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    answer = infer({"id": "x", "inputs": [text]})
    assert answer.json() == {
        "model_name": "embed",
        "model_version": "1",
        "id": "x",
        "outputs": [{"name": "embeddings", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 0.0, 0.0]}],
    }
    ids = {"name": "input_ids", "datatype": "INT32", "shape": [2, 1], "data": [[97], [98]]}
    assert infer({"inputs": [ids]}).json()["outputs"][0]["data"] == [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    half = json.dumps({"inputs": [{**text, "data": None, "parameters": {"binary_data_size": 5}}]}).replace(
        '"data": null, ', ""
    )
    size = {"inference_header_content_length": str(len(half)), "content_type": "application/octet-stream"}
    assert infer(half.encode() + struct.pack("<I", 1) + b"c", **size).json()["outputs"][0]["data"] == [0.0, 0.0, 1.0]
    for body, headers, match in (
        ({"inputs": []}, {}, "at least one object"),
        ({"inputs": [{**text, "shape": [2]}]}, {}, "1 elements; shape"),
        ({"inputs": [{**text, "datatype": "FP16"}]}, {}, "datatype 'FP16'"),
        ({"inputs": [{**text, "shape": [-1]}]}, {}, "not valid"),
        ({"inputs": [{**ids, "data": [True, 1]}]}, {}, "must be numbers"),
        ({"inputs": [{**ids, "data": [1 << 40, 1]}]}, {}, "does not fit INT32"),
        (half.encode() + struct.pack("<I", 9) + b"c", size, "are not 1 elements"),
        (half.encode() + struct.pack("<I", 1) + b"cd", size, "belong to no input"),
        (half.encode(), size, "binary_data_size"),
        ({"inputs": [text]}, {"inference_header_content_length": "99999"}, "must be a number up to"),
        ({"inputs": [text]}, {"content_encoding": "gzip"}, "compressed"),
        ({"inputs": [text]}, {"content_type": "text/plain"}, "octet-stream"),
    ):
        refused = infer(body, **headers)
        assert refused.status_code in (400, 415)
        assert match in refused.json()["error"]


def test_the_compiled_messages_are_those_of_the_proto_file(tmp_path: Path) -> None:
    folder, compiled = DESCRIPTORS.parent, tmp_path / "out"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(folder), f"--descriptor_set_out={compiled}"]
    subprocess.run([*command, "inference.proto"], check=True, cwd=folder)
    assert compiled.read_bytes() == DESCRIPTORS.read_bytes()


def test_a_port_in_use_is_an_error_at_the_start(served: LiveServer) -> None:
    server = GrpcServer(served.service, f"127.0.0.1:{served.port}")
    with pytest.raises(RequestError, match="choose another port"):
        asyncio.run_coroutine_threadsafe(server.start(), served.loop).result()


HI = {"text_input": "hi"}


def test_triton_s_clients_read_statistics_of_requests_over_any_api(client: tuple[Any, Any], served: LiveServer) -> None:
    module, triton = client
    as_json = {} if module is tritonclient.http else {"as_json": True}

    def stats(name: str) -> dict[str, Any]:
        (found,) = triton.get_inference_statistics(name, **as_json)["model_stats"]
        assert (found["name"], found["version"]) == (name, "1")
        return found  # type: ignore[no-any-return]

    def count(found: dict[str, Any], key: str) -> int:
        return int(found["inference_stats"][key].get("count", 0))

    before = stats("embed")
    triton.infer("embed", [texts(module, "ab", "c")])
    with pytest.raises(InferenceServerException):
        triton.infer("embed", [texts(module, "")])
    body = {"model": "embed", "input": ["a", "b", "c"]}
    url = f"http://127.0.0.1:{served.port}/v1/embeddings"
    assert httpx.post(url, json=body, timeout=WAIT_SECONDS).status_code == 200

    def have_been_counted() -> bool:
        # A request is counted after its answer.
        return count(stats("embed"), "success") == count(before, "success") + 2

    wait_until(have_been_counted)
    after = stats("embed")
    assert count(after, "fail") == count(before, "fail") + 1
    assert int(after["inference_stats"]["success"]["ns"]) > int(before["inference_stats"]["success"].get("ns", 0))
    assert int(after["last_inference"]) > 1_700_000_000_000
    # Tokens of this protocol are those of all others, and count for limits too.
    assert served.service.metrics.value("vllm:prompt_tokens_total", model_name="embed") > 0
    assert {each["name"] for each in triton.get_inference_statistics(**as_json)["model_stats"]} >= {"embed", "rank"}
    with pytest.raises(InferenceServerException, match="does not exist"):
        triton.get_inference_statistics("none", "1")


def test_statistics_count_what_the_engine_has_computed(models: ModelsWithEncoders) -> None:
    batches, requests = BatchRecord(), RequestRecord()
    batches.admitted([0.25] * 3)
    batches.computed(3, 12, 0.5)
    requests.ended(10, 20, 0.125, 1.0)
    steps = EngineStats(steps=21, requests=requests.snapshot())
    for engine, counts, queue, computed in (
        (EngineStats(batches=batches.snapshot()), (3, 1), (3, 750_000_000), (1, 500_000_000)),
        (steps, (1, 21), (0, 0), (1, 1_125_000_000)),
    ):
        models.fake.current = replace(models.fake.current, engine=engine)
        found = run(ask_app(create_app(models, ApiConfig()), "GET", "/v2/models/fake/stats")).json()["model_stats"][0]
        assert (found["inference_count"], found["execution_count"]) == counts
        durations = found["inference_stats"]
        assert tuple(durations["queue"].values()) == queue
        assert tuple(durations["compute_infer"].values()) == computed


def test_models_of_the_store_that_are_not_loaded_have_a_state_and_statistics(
    tmp_path: Path, models: ModelsWithEncoders
) -> None:
    class Opener:
        async def prepare(self, model: str, name: str | None) -> Opening:
            async def opened() -> Executor:
                return models.encoders["embed"]

            return Opening(name or model, None, opened)

    store = Store(tmp_path / "store")
    store.pull("demo", "used")
    store.copy("used", "copied")
    stored = StoredModels(Registry(Opener()), store)

    async def main() -> None:
        async with stored.using("used"):
            app = create_app(stored, ApiConfig())
            states = {each["name"]: each for each in (await ask_app(app, "POST", "/v2/repository/index")).json()}
            ready = (await ask_app(app, "POST", "/v2/repository/index", {"ready": True})).json()
            found = [(await ask_app(app, "GET", f"/v2/models/{name}/stats")).json() for name in ("used", "copied")]
        assert {name: (each["state"], each["reason"]) for name, each in states.items()} == {
            "used": ("READY", ""),
            "copied": ("UNAVAILABLE", "not loaded"),
        }
        assert [each["name"] for each in ready] == ["used"]
        assert [each["model_stats"][0]["name"] for each in found] == ["used", "copied"]

    run(main())


class Sleeping(ModelsWithEncoders):
    """Its models load and sleep. ``changes`` are those that were requested."""

    def __init__(self, models: ModelsWithEncoders) -> None:
        super().__init__(encoders=models.encoders)
        self.changes: list[ModelChange] = []
        self.asleep: set[str] = set()

    def states(self) -> Mapping[str, ExecutorState]:
        return {name: ASLEEP if name in self.asleep else state for name, state in super().states().items()}

    async def change(self, change: ModelChange) -> ModelCard | None:
        self.changes.append(change)
        match change:
            case SleepRequest(model):
                self.asleep.add(model)
            case WakeRequest(model):
                self.asleep.discard(model)
            case _:
                return await super().change(change)
        return None


def test_an_admin_loads_and_unloads_over_triton_s_clients(models: ModelsWithEncoders) -> None:
    digests = {name: hashlib.sha256(f"key-of-{name}".encode()).digest() for name in ("ops", "web")}
    keys = [ApiKey(name, digest, admin=name == "ops") for name, digest in digests.items()]
    sleeping = Sleeping(models)
    with live_server(sleeping, ApiConfig(keys=Keys(tuple(keys)))) as live:
        server = GrpcServer(live.service, "127.0.0.1:0")
        asyncio.run_coroutine_threadsafe(server.start(), live.loop).result()
        ops, web = ({"authorization": f"Bearer key-of-{name}"} for name in ("ops", "web"))
        try:
            with (
                tritonclient.http.InferenceServerClient(f"127.0.0.1:{live.port}") as over_http,
                tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.port}") as over_grpc,
            ):
                for triton, index in (
                    (over_http, lambda: over_http.get_model_repository_index(headers=ops)),
                    (over_grpc, lambda: over_grpc.get_model_repository_index(headers=ops, as_json=True)["models"]),
                ):
                    sleeping.changes.clear()

                    def state(name: str, index: Any = index) -> tuple[str, str]:
                        (found,) = [each for each in index() if each["name"] == name]
                        return found["state"], found.get("reason", "")

                    assert state("embed") == ("READY", "")
                    triton.unload_model("embed", headers=ops)
                    assert state("embed") == ("UNAVAILABLE", "asleep")
                    assert not triton.is_model_ready("embed", headers=ops)
                    triton.load_model("embed", headers=ops)
                    triton.load_model("embed", headers=ops)
                    triton.load_model("./folder", headers=ops)
                    assert state("embed") == ("READY", "")
                    assert sleeping.changes == [
                        SleepRequest("embed"), WakeRequest("embed"), LoadRequest(model="./folder"),
                    ]  # fmt: skip
                    sleeping.loaded.clear()
                    with pytest.raises(InferenceServerException, match="'config' is not supported"):
                        triton.load_model("embed", headers=ops, config="{}")
                    with pytest.raises(InferenceServerException, match="is not a model: String should match pattern"):
                        triton.load_model("a\x7fb", headers=ops)
                    with pytest.raises(InferenceServerException, match="admin's API key"):
                        triton.load_model("embed", headers=web)
                    with pytest.raises(InferenceServerException, match="admin's API key"):
                        triton.unload_model("embed", headers=web)
        finally:
            asyncio.run_coroutine_threadsafe(server.close(), live.loop).result()


def test_generate_answers_in_the_form_of_triton_s_vllm_backend(models: ModelsWithEncoders) -> None:
    app = create_app(models, ApiConfig())

    def generate(body: object, path: str = "other/name/generate") -> httpx.Response:
        return run(ask_app(app, "POST", f"/v2/models/{path}", body))

    parameters = {"temperature": 0, "max_tokens": 5, "stop": ["x"], "top_k": 3}
    answer = generate({**HI, "id": "7", "parameters": {**parameters, "exclude_input_in_output": True}})
    named = {"model_name": "other/name", "model_version": "1", "id": "7"}
    assert answer.json() == {**named, "text_output": "Hello!"}
    asked = models.fake.requests[-1]
    assert isinstance(asked, CompletionRequest)
    assert (asked.model, asked.prompt, asked.temperature, asked.max_tokens) == ("other/name", "hi", 0, 5)
    assert (asked.stop, asked.top_k) == (["x"], 3)
    # As in Triton, the answer begins with the input unless that is excluded.
    assert generate(HI, "fake/versions/1/generate").json()["text_output"] == "hiHello!"
    stream = generate({**HI, "parameters": {"stream": True}}, "fake/generate_stream")
    assert stream.headers["content-type"].startswith("text/event-stream")
    data = [json.loads(line.removeprefix("data: ")) for line in stream.text.split("\n\n") if line.startswith("data: ")]
    assert data == [{"model_name": "fake", "model_version": "1", "text_output": text} for text in ("Hel", "lo", "!")]


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({}, "fake/generate", "Missing required parameter: 'text_input'"),
        ({**HI, "max_tokens": 3}, "fake/generate", "Unknown parameter: 'max_tokens'"),
        ({**HI, "parameters": {"beams": 3}}, "fake/generate", "Unknown parameter: 'parameters.beams'"),
        ({**HI, "parameters": {"max_tokens": "3"}}, "fake/generate", "'parameters.max_tokens'"),
        ({**HI, "parameters": {"n": 2}}, "fake/generate", "'n' is not supported here; use /v1/completions"),
        ({**HI, "parameters": {"model": "x"}}, "fake/generate", "'model' is not supported here"),
        ({**HI, "parameters": {"stream": True}}, "fake/generate", "use /generate_stream"),
        ({**HI, "parameters": {"stream": False}}, "fake/generate_stream", "use /generate"),
        ({**HI, "parameters": {"exclude_input_in_output": 1}}, "fake/generate", "must be true or false"),
        ({**HI, "parameters": {"exclude_input_in_output": False}}, "fake/generate_stream", "the answer alone"),
        (HI, "none/generate", "does not exist"),
        (HI, "fake/versions/2/generate", "no version '2'"),
    ],
)
def test_generate_refuses_by_name(models: ModelsWithEncoders, body: object, path: str, words: str) -> None:
    answer = ask("POST", f"/v2/models/{path}", body, models)
    assert answer.status_code in (400, 404)
    assert words in answer.json()["error"]
