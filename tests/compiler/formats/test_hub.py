"""Downloads from the Hugging Face Hub, whose routes a server on this machine has, and names that are not on the hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_hub import FakeHub, fake_hub
from safetensors.torch import load_file
from tiny_models import make_checkpoint
from waiting import wait_until

from nearfar.compiler.formats import load
from nearfar.compiler.runtime.errors import CheckpointError

CHUNK_BYTES = 1 << 12
SCRIPT = f"""
import json, sys, time
import huggingface_hub.constants
from nearfar.compiler.runtime.errors import CheckpointError
from nearfar.compiler.formats import load

huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = {CHUNK_BYTES}
# The client waits a second before it continues.
time.sleep = lambda _: None
for name in sys.argv[1:]:
    try:
        checkpoint = load(name)
        print(json.dumps([str(checkpoint.path), checkpoint.tokenizer.content.decode()]))
    except CheckpointError as error:
        print(json.dumps(str(error)))
"""


def load_from(hub: FakeHub, home: Path, *names: str) -> list[Any]:
    """For each name, the path of a checkpoint and its tokenizer, or the error, from a separate process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *names],
        capture_output=True, text=True, check=False, env=settings(hub, home), timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def settings(hub: FakeHub, home: Path) -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return env | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "5",
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_checkpoint("llama_plain", folder)
    return folder


@pytest.fixture(scope="module")
def files(saved: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in saved.iterdir()}


def test_a_lost_connection_continues_where_it_stopped(files: dict[str, bytes], tmp_path: Path) -> None:
    half = len(files["model.safetensors"]) // 2
    files = {**files, "README.md": b"---\nlicense: mit\n---\n"}
    with fake_hub({"owner/name": {**files, "training.md": b"#", "consolidated.00.pth": b"x"}}) as hub:
        hub.limit_bytes = half
        [found] = load_from(hub, tmp_path, "owner/name")
        ranges = [wanted for file, wanted in hub.requested if file == "model.safetensors"]
        assert ranges == [None, f"bytes={half // CHUNK_BYTES * CHUNK_BYTES}-"]
        assert {file for file, _ in hub.requested} == set(files)
        assert (Path(found[0]) / "model.safetensors").read_bytes() == files["model.safetensors"]
    # Files in the cache need no network, and the tokenizer is a part of the checkpoint.
    [again] = load_from(hub, tmp_path, "owner/name")
    assert again == [found[0], files["tokenizer.json"].decode()]


def test_a_killed_process_leaves_what_the_next_one_continues(files: dict[str, bytes], tmp_path: Path) -> None:
    weights = files["model.safetensors"]
    with fake_hub({"owner/name": files, "owner/damaged": files}) as hub:
        hub.held_bytes = len(weights) // 2
        partial = tmp_path / "hub" / "models--owner--name" / "blobs" / f"{sha256(weights).hexdigest()}.partial"
        killed = subprocess.Popen([sys.executable, "-c", SCRIPT, "owner/name"], env=settings(hub, tmp_path))
        try:
            wait_until(lambda: partial.exists() and partial.stat().st_size > 0)
        finally:
            killed.kill()
            killed.wait()
            hub.resumed.set()
        received = partial.stat().st_size
        # Bytes that the disk has lost.
        damaged = tmp_path / "hub" / "models--owner--damaged" / "blobs" / partial.name
        damaged.parent.mkdir(parents=True)
        damaged.write_bytes(bytes(received))
        found, error, again = load_from(hub, tmp_path, "owner/name", "owner/damaged", "owner/damaged")
        assert "model.safetensors was downloaded with other bytes than the hub announced" in error
        for folder, _ in (found, again):
            assert (Path(folder) / "model.safetensors").read_bytes() == weights
        ranges = [wanted for file, wanted in hub.requested if file == "model.safetensors"]
        assert ranges == [None, f"bytes={received}-", f"bytes={received}-", None]
        assert 0 < received < len(weights)
        assert not list(tmp_path.rglob("*.partial"))


def test_a_second_download_gets_only_what_is_missing(files: dict[str, bytes], tmp_path: Path) -> None:
    with fake_hub({"owner/name": files}) as hub:
        hub.missing = "model.safetensors"
        error, found = load_from(hub, tmp_path, "owner/name", "owner/name")
        assert "owner/name: is not a local folder, and could not be downloaded" in error
        assert found[1] == files["tokenizer.json"].decode()
        requested = [file for file, _ in hub.requested]
        assert requested.count("model.safetensors") == 2
        assert len(requested) == len(files) + 1


def test_a_repository_without_safetensors_gives_its_pytorch_files(files: dict[str, bytes], tmp_path: Path) -> None:
    tensors = tmp_path / "tensors.safetensors"
    tensors.write_bytes(files["model.safetensors"])
    torch.save(load_file(tensors), tmp_path / "pytorch_model.bin")
    others = {name: content for name, content in files.items() if name != "model.safetensors"}
    old = {**others, "pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes(), "training_args.bin": b"x"}
    with fake_hub({"owner/old": old, "owner/both": {**files, "pytorch_model.bin": b"x"}}) as hub:
        first, second, error = load_from(hub, tmp_path / "home", "owner/old", "owner/both", "owner/none")
        assert [first[1], second[1]] == [files["tokenizer.json"].decode()] * 2
        requested = [file for file, _ in hub.requested]
        assert requested.count("pytorch_model.bin") == 1
        assert "training_args.bin" not in requested
        assert "check the name, and log in with 'hf auth login' if it is private" in error


def test_a_repository_is_downloaded_without_pickles_and_opened(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fnmatch import fnmatch

    import huggingface_hub

    received: dict[str, Any] = {}

    def fake_download(repository: str, **options: Any) -> str:
        received.update(options, repository=repository)
        return str(saved)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake_download)
    assert load("Qwen/Qwen3-0.6B").path == saved
    assert received["repository"] == "Qwen/Qwen3-0.6B"

    def is_fetched(name: str) -> bool:
        return any(fnmatch(name, p) for p in received["allow_patterns"]) and not any(
            fnmatch(name, p) for p in received["ignore_patterns"]
        )

    fetched = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "chat_template.jinja",
        "tokenizer.json",
    ]
    fetched += ["modules.json", "1_Pooling/config.json", "additional_chat_templates/tool_use.jinja"]
    fetched += ["mlc-chat-config.json", "tensor-cache.json", "params_shard_12.bin"]
    assert all(map(is_fetched, fetched))
    left = [
        "pytorch_model.bin",
        "original/params.json",
        "consolidated.safetensors",
        "model.gguf",
        "modeling.py",
        "onnx/x.json",
        "2_Dense/x.safetensors",
    ]
    assert not any(map(is_fetched, left))


def hub_errors() -> dict[str, tuple[Exception, str]]:
    from huggingface_hub import errors

    response: Any = SimpleNamespace(headers={}, request=None)
    # The client's HTTP library depends on its version.
    http_error = vars(errors)["HTTPError"]
    return {
        "gated": (
            errors.GatedRepoError("Access is restricted.\nmore", response=response),
            "Access is restricted; accept its terms",
        ),
        "absent": (
            errors.RepositoryNotFoundError("404 Client Error.", response=response),
            "404 Client Error; check the name",
        ),
        "http": (errors.HfHubHTTPError("503 Server Error", response=response), "503 Server Error; check the network"),
        "offline": (
            errors.OfflineModeIsEnabled("offline mode is enabled"),
            "offline mode is enabled; check the network",
        ),
        "uncached": (errors.LocalEntryNotFoundError("not in the cache"), "not in the cache; check the network"),
        "connect": (http_error("name not resolved"), "name not resolved; check the network"),
        "disk": (OSError(28, "No space left on device"), "No space left on device; check"),
        "wordless": (TimeoutError(), "TimeoutError; check the network"),
    }


@pytest.mark.parametrize("kind", ["gated", "absent", "http", "offline", "uncached", "connect", "disk", "wordless"])
def test_hub_errors_state_the_cause_and_that_a_folder_needs_no_network(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    failure, words = hub_errors()[kind]

    def fail(*_: object, **__: object) -> str:
        raise failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(
        CheckpointError,
        match=r"^owner/name: .*could not be downloaded.*or pass a local folder, which needs no network$",
    ) as caught:
        load("owner/name")
    assert words in caught.value.message
    assert caught.value.__cause__ is failure


def test_paths_that_are_not_checkpoints_are_refused_without_network(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("went to the network"))
    # Relative paths are resolved in an empty folder, not in the folder where the tests were started.
    here = tmp_path / "parent" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(CheckpointError, match=r"model\.Q4_K_M\.gguf: there is no such file"):
        load(str(tmp_path / "model.Q4_K_M.gguf"))
    with pytest.raises(
        CheckpointError, match=r"is a file; pass a \.gguf file, or the folder that contains config\.json"
    ):
        load(str(saved / "model.safetensors"))
    for model in [
        str(tmp_path / "absent"),
        "./absent/model",
        "absent",
        "a/b/c",
        "",
        "~/absent",
        "~no-such-user/x",
        "../x",
        "x\0",
        "x" * 5000,
    ]:
        with pytest.raises(CheckpointError, match=r"there is no such folder.*owner/name"):
            load(model)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load(str(tmp_path))
