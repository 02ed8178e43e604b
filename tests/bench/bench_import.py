"""The time and the memory of compiling a GGUF file of a 7B model, as Q4_K_M has it: ``make bench-import``.

The file is sparse: its weights are zeros that take no room on disk. Weights are packed as any others, and the bundle is
written in full. The peak memory is the kernel's count of the compiler's resident pages. The speed of the disk is that
of writing a file of a gigabyte, before and after.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from bench_compile import machine
from gguf import GGMLQuantizationType as Type
from rich.console import Console
from rich.table import Table

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
            [sys.executable, "-m", "nearfar.compiler.cli", *command], check=True, stdout=subprocess.PIPE, text=True
        )
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
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(32_768)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    writer.add_token_list([*tokens, *(f"word{number}" for number in range(VOCABULARY - len(tokens)))])
    writer.add_token_scores([0.0] * VOCABULARY)
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * (VOCABULARY - len(kinds))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    end = 0
    for name, shape, kind in tensors():
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        count = math.prod(shape) // elements * size
        # The shape that it takes is that of the bytes.
        writer.add_tensor_info(
            name, [*shape[:-1], shape[-1] // elements * size], np.dtype(np.uint8), count, raw_dtype=kind
        )
        end += -(-count // 32) * 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    start = -(-path.stat().st_size // 32) * 32
    with path.open("r+b") as file:
        file.truncate(start + end)
    return path


def tensors() -> list[tuple[str, tuple[int, ...], Type]]:
    found: list[tuple[str, tuple[int, ...], Type]] = [
        ("token_embd.weight", (VOCABULARY, HIDDEN), Type.Q4_K),
        ("output_norm.weight", (HIDDEN,), Type.F32),
        ("output.weight", (VOCABULARY, HIDDEN), Type.Q6_K),
    ]
    for layer in range(LAYERS):
        # llama.cpp gives more bits to the first and the last layers, and to every third between.
        more = layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2
        high = Type.Q6_K if more else Type.Q4_K
        parts: dict[str, tuple[tuple[int, ...], Type]] = {
            "attn_norm": ((HIDDEN,), Type.F32),
            "attn_q": ((HEADS * HEAD_DIM, HIDDEN), Type.Q4_K),
            "attn_k": ((KV_HEADS * HEAD_DIM, HIDDEN), Type.Q4_K),
            "attn_v": ((KV_HEADS * HEAD_DIM, HIDDEN), high),
            "attn_output": ((HIDDEN, HEADS * HEAD_DIM), Type.Q4_K),
            "ffn_norm": ((HIDDEN,), Type.F32),
            "ffn_gate": ((FEED_FORWARD, HIDDEN), Type.Q4_K),
            "ffn_up": ((FEED_FORWARD, HIDDEN), Type.Q4_K),
            "ffn_down": ((HIDDEN, FEED_FORWARD), high),
        }
        found += [(f"blk.{layer}.{part}.weight", *rest) for part, rest in parts.items()]
    return found


if __name__ == "__main__":
    main()
