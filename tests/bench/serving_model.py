"""The model of `bench_serving.py`: a random checkpoint, a tokenizer with a text for every id, its bundle and its GGUF
file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from checkpoints import QWEN3_0_6B, write_checkpoint

from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.export.gguf_file import GgufOptions, export_gguf
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model

CONTEXT = 1024
# The template adds nothing to a message's text, so that prompts have the intended lengths.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
END = "<|end|>"


@dataclass(frozen=True, slots=True)
class ServingModel:
    """``gguf`` is None if llama-cpp-python is missing."""

    bundle: Path
    gguf: Path | None


def make_serving_model(
    folder: Path, activations: tuple[str, ...] | None, progress: Callable[[str], None]
) -> ServingModel:
    """Create the model unless it exists; it takes 3 GB of disk space. If ``activations`` is None, they are those of the
    weight format.
    """
    checkpoint, bundle, gguf = (
        folder / f"{QWEN3_0_6B.name}{suffix}" for suffix in ("-chat", "-chat-cpu", "-chat.gguf")
    )
    tokens = token_texts(QWEN3_0_6B.config["vocab_size"])
    if not (checkpoint / "tokenizer_config.json").exists():
        progress("writing a random checkpoint")
        write_checkpoint(QWEN3_0_6B, checkpoint)
        write_chat_tokenizer(checkpoint, tokens)
    progress("compiling it")
    options = CompileOptions(target="cpu", context=CONTEXT, activations=activations, self_test=False, force=True)
    compile_model(str(checkpoint), bundle, options)
    if not find_spec("llama_cpp"):
        return ServingModel(bundle, None)
    if not gguf.exists():
        progress("writing it as GGUF")
        export_gguf(open_bundle(bundle), gguf, GgufOptions())
    return ServingModel(bundle, gguf)


def token_texts(vocab_size: int) -> list[str]:
    """256 letters for the bytes, from which all prompts are built, then words that only answers contain, and the end of
    an answer.
    """
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*letters, *(f"Ġw{index}" for index in range(len(letters), vocab_size - 1)), END]


def write_chat_tokenizer(folder: Path, tokens: list[str]) -> None:
    """Replace the checkpoint's tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE, "eos_token": END}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": len(tokens) - 1}))
