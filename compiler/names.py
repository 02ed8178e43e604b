"""The names that options accept for targets, runners and formats, and defaults of options. They are here and not beside
what they name, because the help of a command imports nothing slow.
"""

from __future__ import annotations

# The targets that run our own plans; see `pipeline/target.py`.
TARGETS = ("webgpu", "cpu", "cuda")
# The targets whose bundles are a framework's own files.
EXPORTS = ("onnx", "mlx")
RUNNERS = ("numpy", *TARGETS, *EXPORTS)
ACTIVATIONS = ("float16", "bfloat16", "float32", "int8")
# The weight formats of `quant/`, and how many weights share a scale in them: what other frameworks' kernels accept.
QUANTIZATIONS = ("q4f16", "q4f32", "q8f16", "f16", "f32")
# Those that are the same as formats of GGUF files, by the names that Ollama and llama.cpp use, in lower case.
GGUF_QUANTIZATIONS = {"q4_0": "q4f16", "q8_0": "q8f16", "f16": "f16", "f32": "f32"}
GROUPS = (32, 64, 128)
# Of Kirchenbauer et al. 2023; TGI's share is 0.5.
WATERMARK_SHARE, WATERMARK_STRENGTH = 0.25, 2.0
