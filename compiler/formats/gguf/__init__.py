"""GGUF: one file with a model's configuration, tokenizer and tensors (llama.cpp's format)."""

from .checkpoint import SUFFIX, open_gguf

__all__ = ["SUFFIX", "open_gguf"]
