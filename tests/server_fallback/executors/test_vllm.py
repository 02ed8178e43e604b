"""`vllm serve` as an executor: a stand-in of that name on the PATH starts, crashes, and is started again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from answers import all_chunks, whole
from waiting import until, wait_until

from nearfar.compiler.runtime.errors import DeviceError, RequestError, ToolError
from nearfar.server_fallback.executors import supervised
from nearfar.server_fallback.executors.executor import Call
from nearfar.server_fallback.executors.vllm import VllmExecutor, VllmOpener, VllmOptions
from nearfar.server_fallback.processes.supervisor import Restarts
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest

# The server does not answer a request with this limit.
HANGS = 7
STAND_IN = """#!{python}
import http.server, json, os, subprocess, sys, time
arguments = sys.argv[1:]
HANGS = {hangs}
print("arguments", *arguments, flush=True)
if "--broken" in arguments:
    print("CUDA out of memory", file=sys.stderr)
    sys.exit(3)
once = os.path.join(os.path.dirname(__file__), "started")
if "--broken-later" in arguments and os.path.exists(once):
    sys.exit("no second time")
open(once, "w").close()
worker = subprocess.Popen(["sleep", "3600"])
value = dict(zip(arguments, arguments[1:]))
name = value["--served-model-name"]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = self.path == "/health" or self.headers.get("Authorization") == "Bearer " + os.environ["VLLM_API_KEY"]
        paths = dict.fromkeys(["/v1/embeddings"] if "pooling" in arguments else ["/v1/chat/completions"])
        listed = {{"data": [{{"id": name, "max_model_len": 77}}], "paths": paths}}
        self.answer(200 if allowed or self.path == "/openapi.json" else 401, listed)
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body.get("max_tokens") == HANGS:
            time.sleep(60)
        text = f"{{os.getpid()}} {{worker.pid}} {{body.get('priority')}}"
        choices = [{{"index": 0, "delta": {{"content": text}}, "finish_reason": "stop"}}]
        chunk = json.dumps({{"id": "x", "created": 1, "model": name, "choices": choices}})
        self.answer(200, f"data: {{chunk}}\\n\\ndata: [DONE]\\n\\n")
    def answer(self, status, value):
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((value["--host"], int(value["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, hangs=HANGS))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(supervised, "POLL_SECONDS", 0.05)
    # No test asks the Hugging Face Hub for the files of its model.
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: (_ for _ in ()).throw(OSError("offline")))
    return program


def with_vllm(test: Callable[[VllmExecutor], Awaitable[None]], *arguments: str) -> None:
    async def run() -> None:
        options = VllmOptions("", "", tensor_parallel_size=4, arguments=arguments, restarts=Restarts(0.01, most=5))
        opening = await VllmOpener(options).prepare("org/big", "big")
        assert (opening.name, opening.memory_bytes) == ("big", None)
        executor = await opening.open()
        assert isinstance(executor, VllmExecutor)
        try:
            await test(executor)
        finally:
            await executor.close()

    asyncio.run(run())


async def ask(executor: VllmExecutor, priority: int = 0, max_tokens: int = 9) -> tuple[int, int, str]:
    """The process ids of the server and of its child, and the priority that the server received."""
    request = ChatCompletionRequest.model_validate(
        {"model": "big", "messages": [{"role": "user", "content": "hi"}], "max_tokens": max_tokens}
    )
    chunks = await all_chunks(executor, request, Call("r", priority=priority))
    server, worker, sent = (chunks[0].choices[0].delta.content or "").split()
    return int(server), int(worker), sent


def alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not."""
    status = Path(f"/proc/{pid}/stat")
    return status.is_file() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def assert_gone(*pids: int) -> None:
    """Wait until the killed processes have ended."""
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_it_is_started_with_its_options_and_stopped_with_all_its_processes(
    stand_in: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pids: list[int] = []

    async def check(executor: VllmExecutor) -> None:
        assert executor.state().ready
        assert executor.context == 77
        server, worker, priority = await ask(executor, priority=2)
        assert priority == "-2"
        assert server == executor.server.pid
        pids.extend((server, worker))

    with_vllm(check, "--max-model-len", "77")
    assert_gone(*pids)
    log = capfd.readouterr().err
    assert "vllm | arguments serve org/big --host 127.0.0.1 --port " in log
    assert (
        "--served-model-name big --tensor-parallel-size 4 --pipeline-parallel-size 1 --data-parallel-size 1 "
        "--scheduling-policy priority --enable-prompt-tokens-details --max-model-len 77" in log
    )
    assert stand_in.is_file()


@pytest.mark.usefixtures("stand_in")
def test_a_model_answers_only_on_its_own_routes(capfd: pytest.CaptureFixture[str]) -> None:
    chat = ChatCompletionRequest.model_validate({"model": "big", "messages": [{"role": "user", "content": "hi"}]})
    embedding = EmbeddingRequest(model="big", input="hi")

    async def generates(executor: VllmExecutor) -> None:
        with pytest.raises(RequestError, match="big: this model generates text and makes no embeddings"):
            await executor.embed(embedding, Call("r"))

    async def embeds(executor: VllmExecutor) -> None:
        with pytest.raises(RequestError, match="big: this model makes embeddings and generates no text"):
            await whole(executor, chat, Call("r"))

    with_vllm(generates)
    assert "org/big: its config.json and chat template could not be read" in capfd.readouterr().err
    with_vllm(embeds, "--runner", "pooling")


@pytest.mark.usefixtures("stand_in")
def test_a_crash_is_followed_by_a_new_start_and_leaves_nothing_behind() -> None:
    async def check(executor: VllmExecutor) -> None:
        first, worker, _ = await ask(executor)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not executor.state().ready)
        await until(lambda: executor.state().ready)
        second, _, _ = await ask(executor)
        assert second != first
        assert_gone(worker)

    with_vllm(check)


@pytest.mark.usefixtures("stand_in")
def test_a_server_that_crashes_repeatedly_is_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    async def check(executor: VllmExecutor) -> None:
        pid = executor.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: "not restarted again" in executor.state().detail)
        assert not executor.state().ready
        assert "no second time" in executor.state().detail

    with_vllm(check, "--broken-later")
    assert "(5 of 5)" in capfd.readouterr().err


@pytest.mark.usefixtures("stand_in")
def test_one_that_does_not_start_shows_the_end_of_its_log() -> None:
    with pytest.raises(DeviceError, match=r"(?s)ended with status 3 before it was ready.*CUDA out of memory"):
        with_vllm(lambda _: asyncio.sleep(0), "--broken")


def test_one_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"echo $$ > {pid}; exec sleep 60"]

    async def attempt() -> None:
        server = supervised.SupervisedServer(
            supervised.ServerProgram("slow", command, "http://127.0.0.1:9/", start_seconds=0.3)
        )
        with pytest.raises(DeviceError, match="not ready after 0 seconds"):
            await server.open()

    asyncio.run(attempt())
    assert_gone(int(pid.read_text()))


KILLED = """
import asyncio, os, signal
from nearfar.server_fallback.executors.supervised import ServerProgram, SupervisedServer
async def main():
    server = SupervisedServer(ServerProgram("slow", ["sleep", "60"], "http://127.0.0.1:9/"))
    asyncio.create_task(server.open())
    while server.pid is None or open(f"/proc/{server.pid}/comm").read() != "sleep\\n":
        await asyncio.sleep(0.01)
    print(server.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def test_it_does_not_outlive_a_server_that_is_killed() -> None:
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed (Debian: util-linux)")
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert_gone(int(done.stdout))


def test_without_vllm_the_error_states_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ToolError, match="pip install vllm"):
        asyncio.run(VllmOpener(VllmOptions("", "")).prepare("org/big", None))
