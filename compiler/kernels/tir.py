"""TVM's script builder, with which templates write TIR functions. Importing this module loads TVM, but not torch."""

from __future__ import annotations

from ..without_torch import without_torch

with without_torch():
    from tvm import tirx
    from tvm.script.ir_builder import IRBuilder
    from tvm.tirx.script.builder import ir as script

__all__ = ["IRBuilder", "script", "tirx"]
