"""whisper.cpp through its C interface: the library that the PyPI package pywhispercpp contains.

PyPI's wheel has kernels for AVX2. `pip install --no-binary pywhispercpp pywhispercpp` compiles them for this machine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


# The libraries of the package, each after those that it needs: wheels that pip compiles do not say where they are.
LIBRARIES = ("libggml-base", "libggml-cpu", "libggml", "libwhisper")


class Parameters(ctypes.Structure):
    """whisper_context_params"""

    _fields_ = (
        ("use_gpu", ctypes.c_bool),
        ("flash_attn", ctypes.c_bool),
        ("gpu_device", ctypes.c_int),
        ("dtw_token_timestamps", ctypes.c_bool),
        ("dtw_aheads_preset", ctypes.c_int),
        ("dtw_n_top", ctypes.c_int),
        ("dtw_n_heads", ctypes.c_size_t),
        ("dtw_heads", ctypes.c_void_p),
        ("dtw_mem_size", ctypes.c_size_t),
    )


class WhisperCpp:
    def __init__(self, file: Path, threads: int, vocabulary: int) -> None:
        library = load_library()
        library.whisper_context_default_params.restype = Parameters
        library.whisper_init_from_file_with_params.restype = ctypes.c_void_p
        library.whisper_init_from_file_with_params.argtypes = ctypes.c_char_p, Parameters
        library.whisper_get_logits.restype = ctypes.POINTER(ctypes.c_float)
        library.whisper_print_system_info.restype = ctypes.c_char_p
        self._log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        library.whisper_log_set(self._log, None)
        parameters = library.whisper_context_default_params()
        parameters.use_gpu = False
        self._context = ctypes.c_void_p(library.whisper_init_from_file_with_params(str(file).encode(), parameters))
        if not self._context.value:
            raise SystemExit(f"whisper.cpp cannot read {file}")
        self._library, self._threads, self._vocabulary = library, threads, vocabulary

    @property
    def system(self) -> str:
        """The instruction sets that its kernels use."""
        found: bytes = self._library.whisper_print_system_info()
        return " ".join(part.split(" = ")[0].strip() for part in found.decode().split("|") if part.endswith("= 1 "))

    def frames(self, samples: Floats) -> None:
        pointer = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._check(self._library.whisper_pcm_to_mel(self._context, pointer, len(samples), self._threads))

    def listen(self) -> None:
        self._check(self._library.whisper_encode(self._context, 0, self._threads))

    def decode(self, tokens: Sequence[int], start: int) -> Floats:
        """The logits (V,) of the last of some tokens that follow the first ``start`` ones."""
        array = (ctypes.c_int * len(tokens))(*tokens)
        self._check(self._library.whisper_decode(self._context, array, len(tokens), start, self._threads))
        logits = self._library.whisper_get_logits(self._context)
        # There is a row for each token, and only the last one is computed.
        found: Floats = np.ctypeslib.as_array(logits, (len(tokens), self._vocabulary))[-1]
        return found

    def _check(self, result: int) -> None:
        if result:
            raise SystemExit(f"whisper.cpp: error {result}")


def is_installed() -> bool:
    return find_spec("pywhispercpp") is not None


def load_library() -> Any:
    spec = find_spec("pywhispercpp")
    assert spec is not None
    assert spec.origin is not None
    packages = Path(spec.origin).parents[1]
    for name in LIBRARIES:
        # PyPI's wheel has the libraries in a folder of their own, whose names have a hash.
        files = [*packages.glob(f"pywhispercpp.libs/{name}-*.so*"), *packages.glob(f"{name}.so")]
        longer = tuple(other for other in LIBRARIES if other.startswith(f"{name}-"))
        file = next(each for each in files if not each.name.startswith(longer) or not longer)
        library = ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL)
    return library
