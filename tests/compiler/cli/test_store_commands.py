"""The commands of the model store: pull, list, show, cp, rm, prune and ps."""

from __future__ import annotations

import json
import re
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from server_thread import serving

from nearfar.compiler.cli import main
from nearfar.compiler.cli.output import megabytes
from nearfar.compiler.cli.ps import unloads
from nearfar.compiler.demo import CHECKPOINT
from nearfar.server_fallback.executors import compile_process

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARFAR_CACHE", str(tmp_path / "store"))
    assert main(["pull", "demo", "--name", "kitchen:tag", "--no-compile", "--json"]) == 0


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(list(arguments)) == 0
    return json.loads(capsys.readouterr().out)


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == 2
    return " ".join(capsys.readouterr().err.split())


def test_models_are_listed_shown_copied_and_removed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["cp", "kitchen:tag", "cook"]) == 0
    listed = printed(capsys, "list", "--json")["models"]
    assert [each["name"] for each in listed] == ["cook", "kitchen:tag"]
    shown = printed(capsys, "show", "cook", "--verify", "--json")
    assert (shown["path"], shown["digest"]) == (str(CHECKPOINT), listed[0]["digest"])
    assert main(["list"]) == main(["show", "cook"]) == 0
    text = capsys.readouterr().out
    assert "kitchen:tag" in text
    assert "llama" in text
    # Nothing is removed if one of the names is wrong.
    assert "did you mean 'kitchen:tag'" in failed(capsys, "rm", "cook", "kitchen:tags")
    removed = printed(capsys, "rm", "cook", "kitchen:tag", "--json")
    assert removed["removed"].keys() == removed["kept"].keys() == {"cook", "kitchen:tag"}
    assert removed["kept"]["cook"]["reason"] == "they come with nearfar"
    assert printed(capsys, "list", "--json") == {"models": [], "damaged": []}
    assert main(["list"]) == 0
    assert "pull MODEL gets one" in capsys.readouterr().out
    assert printed(capsys, "prune", "--max-size", "1GB", "--json")["folder"] == str(tmp_path / "store")


def test_rm_says_which_files_stay_and_who_uses_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "mine"
    shutil.copytree(CHECKPOINT, checkpoint)
    for name in ("first", "second"):
        assert main(["pull", str(checkpoint), "--name", name, "--no-compile", "--json"]) == 0
    files = list(checkpoint.iterdir())
    size = sum(path.stat().st_size for path in files)
    # Another model, all of whose files but one are the same.
    (checkpoint / "README.md").write_text("Other words.")
    assert main(["pull", str(checkpoint), "--name", "third", "--no-compile", "--json"]) == 0
    capsys.readouterr()
    assert main(["rm", "first"]) == 0
    line = f"{len(files)} of its files ({megabytes(size)}) stay, because third and second use them"
    assert capsys.readouterr().out.splitlines() == ["removed first  0 bytes freed", f"  {line}"]
    found = printed(capsys, "rm", "second", "--json")
    assert found["kept"]["second"] == {
        "files": len(files) - 1,
        "bytes": size - (CHECKPOINT / "README.md").stat().st_size,
        "used_by": ["third"],
        "reason": "third uses them",
    }
    assert found["removed"]["second"] > 0
    # Removed together, none uses the files of another.
    assert main(["pull", str(checkpoint), "--name", "fourth", "--no-compile", "--json"]) == 0
    found = printed(capsys, "rm", "third", "fourth", "--json")
    assert found["kept"] == {}
    assert found["removed"]["third"] == 0
    assert found["removed"]["fourth"] > size / 2


def test_a_name_is_shown_as_it_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("demo:zzz", "a:smile:b", "[red]x[/]"):
        assert name in failed(capsys, "show", name)
    # Only there, emoji are switched off.
    sources = [path for folder in ("compiler", "server_fallback", "targets") for path in (ROOT / folder).rglob("*.py")]
    makers = [path.name for path in sources if re.search(r"(?<![\w.])Console\(", path.read_text(encoding="utf-8"))]
    assert makers == ["output.py"]


def test_a_damaged_record_is_reported_beside_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "store/models/broken%3Alatest.json").write_text("{")
    found = printed(capsys, "list", "--json")
    assert ([each["name"] for each in found["models"]], len(found["damaged"])) == (["kitchen:tag"], 1)
    assert main(["list"]) == 0
    assert "broken%3Alatest.json: " in capsys.readouterr().err
    assert main(["rm", "broken"]) == 0


def test_a_pulled_model_is_compiled_at_once_and_not_kept_if_that_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nearfar.compiler.runtime.errors import DeviceError

    asked = []

    async def compiled(model: str, options: Any, _: Any) -> Path:
        asked.append((model, options.quantization))
        raise DeviceError("no device")

    monkeypatch.setattr(compile_process, "compiled", compiled)
    assert "no device" in failed(capsys, "pull", "demo:q8f16")
    assert asked == [(str(CHECKPOINT), "q8f16")]
    assert [each["name"] for each in printed(capsys, "list", "--json")["models"]] == ["kitchen:tag"]
    assert "-o is for models of a --catalog" in failed(capsys, "pull", "demo", "-o", "here")


def test_loaded_models_of_a_server_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    models = [{"name": "demo:latest", "size": 20_000_000, "device": "cpu", "expires_at": "2999-01-01T00:00:00Z"}]
    answers = [b"{}", json.dumps({"models": models}).encode()]

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            assert self.path == "/api/ps"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[-1])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    with serving(server):
        assert printed(capsys, "ps", "--server", address, "--json") == {"models": models}
        assert main(["ps", "--server", address]) == 0
        assert "never" in capsys.readouterr().out
        answers.pop()
        assert "is not a server with Ollama's API" in failed(capsys, "ps", "--server", address)
    assert "start nearfar serve" in failed(capsys, "ps", "--server", address)
    assert "is not the address of a server" in failed(capsys, "ps", "--server", "file:///etc")
    assert unloads(None) == ""
