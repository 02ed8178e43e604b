"""The time and the memory of compiling a GGUF file of a 7B model, as Q4_K_M has it: ``make bench-import``.

The file is sparse: its weights are zeros that take no room on disk. Weights are packed as any others, and the bundle is
written in full. The peak memory is the kernel's count of the compiler's resident pages. The speed of the disk is that
of writing a file of a gigabyte, before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_compile import machine
from rich.console import Console
from rich.table import Table

from nearfar.compiler.formats.gguf.writer import NewTensor, Value, write_header
from nearfar.compiler.formats.tokenizer_json import BYTE, CONTROL, NORMAL, UNKNOWN

# Mistral 7B.
LAYERS, HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 32, 4096, 14336, 32, 8, 128, 32_000
SAMPLE_BYTES = 1 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where files are written")
    parser.add_argument("--self-test", action="store_true", help="also compute the bundle's self-test")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        file = write_file(folder / "model.gguf")
        speeds = [write_speed(folder)]
        extra = () if options.self_test else ("--no-self-test",)
        command = ["compile", str(file), "-o", str(folder / "bundle"), "--target", options.target, "--json", *extra]
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "nearfar.compiler.cli", *command], check=True, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "NEARFAR_KERNEL_CACHE": str(folder / "kernels")},
        )  # fmt: skip
        seconds = time.perf_counter() - started
        peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        result = json.loads(done.stdout)
        speeds.append(write_speed(folder))
        packing = result["phases"]["weights"]
        rate, disk = result["bytes"] / packing["seconds"], sum(speeds) / len(speeds)
        table = Table(title=f"{file.stat().st_size / 1e9:.1f} GB of GGUF for {options.target}, {machine()}")
        rows = {
            "bundle": f"{result['bytes'] / 1e9:.2f} GB",
            "peak memory": f"{peak_bytes / 1e9:.2f} GB",
            "seconds": f"{seconds:.0f}",
            "packing, seconds": f"{packing['seconds']:.0f}",
            "packing, processor seconds": f"{packing['processor_seconds']:.0f}",
            "bundle written": f"{rate / 1e6:.0f} MB/s",
            "disk": f"{disk / 1e6:.0f} MB/s",
            "share of the disk's speed": f"{rate / disk:.2f}",
        }
        for label, value in rows.items():
            table.add_row(label, value)
        Console(width=100).print(table)


def write_speed(folder: Path) -> float:
    """Bytes a second that the disk takes."""
    block, path = os.urandom(8 << 20), folder / "sample"
    started = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(SAMPLE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    path.unlink()
    return SAMPLE_BYTES / seconds


def write_file(path: Path) -> Path:
    """A file with the shapes and types of Mistral 7B in Q4_K_M, and a tokenizer of single bytes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    words = VOCABULARY - len(tokens)
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 32_768,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 1e6,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *(f"word{number}" for number in range(words))],
        "tokenizer.ggml.scores": np.zeros(VOCABULARY, np.float32),
        "tokenizer.ggml.token_type": np.array([*kinds, *[NORMAL] * words], np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    write_header(path, metadata, tensors())
    return path


def tensors() -> list[NewTensor]:
    found = [
        new_tensor("token_embd", (VOCABULARY, HIDDEN), "Q4_K"),
        new_tensor("output_norm", (HIDDEN,), "F32"),
        new_tensor("output", (VOCABULARY, HIDDEN), "Q6_K"),
    ]
    for layer in range(LAYERS):
        # llama.cpp gives more bits to the first and the last layers, and to every third between.
        more = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2
        high = "Q6_K" if more else "Q4_K"
        parts: dict[str, tuple[tuple[int, ...], str]] = {
            "attn_norm": ((HIDDEN,), "F32"),
            "attn_q": ((HEADS * HEAD_DIM, HIDDEN), "Q4_K"),
            "attn_k": ((KV_HEADS * HEAD_DIM, HIDDEN), "Q4_K"),
            "attn_v": ((KV_HEADS * HEAD_DIM, HIDDEN), high),
            "attn_output": ((HIDDEN, HEADS * HEAD_DIM), "Q4_K"),
            "ffn_norm": ((HIDDEN,), "F32"),
            "ffn_gate": ((FEED_FORWARD, HIDDEN), "Q4_K"),
            "ffn_up": ((FEED_FORWARD, HIDDEN), "Q4_K"),
            "ffn_down": ((HIDDEN, FEED_FORWARD), high),
        }
        found += [new_tensor(f"blk.{layer}.{part}", *rest) for part, rest in parts.items()]
    return found


def new_tensor(name: str, shape: tuple[int, ...], kind: str) -> NewTensor:
    """A tensor whose values are never written."""
    return NewTensor(f"{name}.weight", shape, kind, lambda start, stop: np.zeros((stop - start, 0), np.uint8))


if __name__ == "__main__":
    main()
