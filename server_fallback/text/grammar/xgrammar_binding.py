"""Binds the part of xgrammar's native library that we use, without torch and transformers.

`import xgrammar` loads both (230 MB and a second), for functions that we do not call. Its native library needs neither:
this module loads the library through tvm_ffi and wraps the functions as xgrammar's own classes do. It fits one version
of xgrammar, which pyproject.toml pins; a test compares it with the package. The calls release the GIL. The build puts
the library into a folder beside this file (.packaging/xgrammar_library.py).

Import this module only where it is used, because it loads the library. The import raises ToolError if there is neither.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.errors import ToolError
from nearfar.compiler.without_torch import without_torch

XGRAMMAR_VERSION = "0.2.8"
_LIBRARY = {"win32": "xgrammar_bindings.dll", "darwin": "libxgrammar_bindings.dylib"}.get(
    sys.platform, "libxgrammar_bindings.so"
)
# The package itself depends on torch, which its library does not need.
_HINT = f"install nearfar again, or run 'pip install --no-deps xgrammar=={XGRAMMAR_VERSION}'"
_NAMESPACE = "xgrammar.tvm_ffi_binding"
# xgrammar's VocabType.RAW: tokens are given as the bytes that they write.
_RAW = 0


class TokenizerInfo:
    """A vocabulary: the bytes of each token, none for special ones."""

    def __init__(self, tokens: Sequence[bytes], stop_token_ids: Sequence[int]) -> None:
        self.handle = _types["TokenizerInfo"](list(tokens), _RAW, len(tokens), list(stop_token_ids), False)


class CompiledGrammar:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    @property
    def memory_size_bytes(self) -> int:
        return int(self.handle.memory_size_bytes())

    def serialize_json(self) -> str:
        return str(self.handle.serialize_json())

    @classmethod
    def deserialize_json(cls, text: str, tokenizer: TokenizerInfo) -> CompiledGrammar:
        """Raises RuntimeError for a text of another version or vocabulary."""
        return cls(_types["CompiledGrammar"].deserialize_json(text, tokenizer.handle))


class GrammarCompiler:
    """Raises RuntimeError for a grammar that is wrong. Without a cache."""

    def __init__(self, tokenizer: TokenizerInfo, max_threads: int) -> None:
        self._handle = _types["GrammarCompiler"](tokenizer.handle, max_threads, False, -1)

    def compile_grammar(self, ebnf: str) -> CompiledGrammar:
        return CompiledGrammar(self._handle.compile_grammar_from_strings(ebnf, "root"))

    def compile_structural_tag(self, structural_tag_json: str) -> CompiledGrammar:
        return CompiledGrammar(self._handle.compile_structural_tag(structural_tag_json))


class GrammarMatcher:
    """A grammar's state after some text. Tokens and texts that are accepted are steps, which `rollback` takes back."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        # No other stop tokens, an answer ends with one, rollback without limit, no default temperature.
        handle = _types["GrammarMatcher"](grammar.handle, None, False, -1, None)
        self._handle = handle
        self._accept_token, self._accept_string = handle.accept_token, handle.accept_string
        self._fill = handle.fill_next_token_bitmask

    def accept_token(self, token_id: int) -> bool:
        return bool(self._accept_token(token_id, False))

    def accept_string(self, text: str) -> bool:
        return bool(self._accept_string(text, False))

    def fill_next_token_bitmask(self, mask: npt.NDArray[np.int32]) -> None:
        """``mask`` (ceil(V / 32),), least significant bit first, is overwritten."""
        self._fill(mask, 0, False)

    def find_jump_forward_string(self) -> str:
        return str(self._handle.find_jump_forward_string())

    def rollback(self, steps: int) -> None:
        self._handle.rollback(steps)

    @property
    def num_states(self) -> int:
        """The number of parser states after the text so far, at least 1: one for each way to continue the grammar."""
        return str(self._handle._debug_print_internal_state()).count("ParserState(")

    def is_completed(self) -> bool:
        return bool(self._handle.is_completed())


def _library() -> Path:
    """Raises ToolError."""
    try:
        installed = version("xgrammar")
    except PackageNotFoundError:
        installed = None
    ours = Path(__file__).with_name("xgrammar") / _LIBRARY
    # A process that also imports the package must load its library, because two would register the same types.
    if installed == XGRAMMAR_VERSION:
        package = find_spec("xgrammar")
        assert package is not None
        [folder, *_] = package.submodule_search_locations or ["."]
        return Path(folder) / _LIBRARY
    if ours.is_file():
        return ours
    raise ToolError(f"structured output needs the library of xgrammar {XGRAMMAR_VERSION}: {ours} is missing; {_HINT}")


def _load() -> dict[str, Any]:
    """The library's types by name. Raises ToolError."""
    library = _library()
    try:
        with without_torch():
            import tvm_ffi
        tvm_ffi.load_module(library)
    except (ImportError, OSError, RuntimeError) as error:
        raise ToolError(f"structured output needs {library}, which cannot be loaded: {error}; {_HINT}") from error
    names = ("TokenizerInfo", "GrammarCompiler", "CompiledGrammar", "GrammarMatcher")
    return {name: tvm_ffi.register_object(f"{_NAMESPACE}.{name}")(type(name, (tvm_ffi.Object,), {})) for name in names}


_types = _load()
