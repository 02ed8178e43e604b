"""Writes the weights of a bundle as files of other ecosystems: GGUF for llama.cpp, safetensors for transformers."""
