"""MiMo: Qwen2 with heads that predict several tokens ahead, which are not compiled. Xiaomi 2025."""

from __future__ import annotations

from ..formats.config import ConfigReader
from ..ir.spec import ModelSpec
from . import qwen2
from .decoder import forward

__all__ = ["forward", "read_config"]


def read_config(config: ConfigReader) -> ModelSpec:
    """The spec of a config.json with model_type "mimo"."""
    config.ignore("num_nextn_predict_layers")
    # Published configs contain this key although the model always has these biases.
    config.expect("attention_bias", True)
    return qwen2.read_config(config)
