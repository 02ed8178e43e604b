"""Downloads from the Hugging Face Hub. A server on this machine has its routes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_hub import FakeHub, fake_hub
from safetensors.torch import load_file
from tiny_models import make_checkpoint
from waiting import wait_until

CHUNK_BYTES = 1 << 12
SCRIPT = f"""
import json, sys
import huggingface_hub.constants
from nearfar.compiler.errors import CheckpointError
from nearfar.compiler.formats import load

huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = {CHUNK_BYTES}
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
        capture_output=True, text=True, check=False, env=settings(hub, home), timeout=60,
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
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("made")
    make_checkpoint("llama_plain", folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_lost_connection_continues_where_it_stopped(files: dict[str, bytes], tmp_path: Path) -> None:
    half = len(files["model.safetensors"]) // 2
    with fake_hub({"owner/name": {**files, "README.md": b"#", "consolidated.00.pth": b"x"}}) as hub:
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
        killed = subprocess.Popen([sys.executable, "-c", SCRIPT, "owner/name"], env=settings(hub, tmp_path))
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.rglob("*.partial")))
        killed.kill()
        killed.wait()
        hub.resumed.set()
        [partial] = tmp_path.rglob("*.partial")
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
