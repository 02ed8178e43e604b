"""Espeak: eSpeak NG's library through ctypes (speak_lib.h, version 1.52). It has one state for the whole process, and
is used from one thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nearfar.compiler.runtime.errors import DeviceError

Samples = npt.NDArray[np.int16]

# AUDIO_OUTPUT_SYNCHRONOUS, espeakINITIALIZE_DONT_EXIT, espeakCHARS_UTF8 without markup, espeakRATE.
SYNCHRONOUS, DONT_EXIT, UTF8, RATE = 2, 0x8000, 1, 1
POS_CHARACTER = 1
# Words in a minute at speed 1. Below the least, espeak speaks no more slowly.
NORMAL_WORDS, LEAST_WORDS = 175, 80


class _Voice(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        # Pairs of a priority and a text, the last followed by 0.
        ("languages", ctypes.c_void_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


_OnSamples = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Espeak:
    """``voices``: the file of each language's voice, by its code. ``variants``: how voices can be changed, as by f3."""

    def __init__(self, library: str, data: str) -> None:
        """Raises DeviceError if the library cannot be opened."""
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError as error:
            raise DeviceError(f"espeak's library cannot be loaded: {error}; install espeakng-loader again") from error
        self.rate: int = self._library.espeak_Initialize(SYNCHRONOUS, 0, data.encode(), DONT_EXIT)
        if self.rate <= 0:
            raise DeviceError(
                f"espeak cannot open its data at {data}; install espeakng-loader again, at a path of fewer than 140 "
                "characters"
            )
        self._library.espeak_ListVoices.restype = ctypes.POINTER(ctypes.POINTER(_Voice))
        self._library.espeak_ListVoices.argtypes = (ctypes.c_void_p,)
        self._take: Callable[[Samples], bool] = lambda _: True
        # ctypes does not keep it.
        self._callback = _OnSamples(self._on_samples)
        self._library.espeak_SetSynthCallback(self._callback)
        self.voices = self._read_voices()
        language = ctypes.create_string_buffer(b"variant")
        spec = _Voice(languages=ctypes.cast(language, ctypes.c_void_p))
        found = self._listed(ctypes.byref(spec))
        self.variants = frozenset(each.identifier.decode(errors="replace").removeprefix("!v/") for each in found)

    def say(self, text: str, voice: str, words_per_minute: int, most_samples: int) -> Samples | None:
        """The samples (N,) of a text, None for more than ``most_samples``. ``voice`` is a file of ``voices``, perhaps
        with + and a variant. Raises DeviceError.
        """
        parts, count = list[Samples](), 0

        def take(samples: Samples) -> bool:
            nonlocal count
            parts.append(samples)
            count += len(samples)
            return count <= most_samples

        self._take = take
        library, encoded = self._library, text.replace("\0", " ").encode(errors="replace")
        failed = library.espeak_SetVoiceByName(voice.encode())
        failed = failed or library.espeak_SetParameter(RATE, words_per_minute, 0)
        size = ctypes.c_size_t(len(encoded) + 1)
        failed = failed or library.espeak_Synth(encoded, size, 0, POS_CHARACTER, 0, UTF8, None, None)
        if failed:
            raise DeviceError(f"espeak cannot speak with the voice {voice} (status {failed}); use another one")
        if count > most_samples:
            return None
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)

    def _on_samples(self, samples: Any, count: int, _: object) -> int:
        """1 ends the synthesis."""
        if not samples or count <= 0:
            return 0
        return int(not self._take(np.ctypeslib.as_array(samples, (count,)).copy()))

    def _listed(self, spec: object) -> Iterator[_Voice]:
        listed, index = self._library.espeak_ListVoices(spec), 0
        while listed[index]:
            yield listed[index].contents
            index += 1

    def _read_voices(self) -> Mapping[str, str]:
        """Of several voices for a language, the one with the best priority."""
        best: dict[str, tuple[int, str]] = {}
        for voice in self._listed(None):
            identifier = voice.identifier.decode(errors="replace")
            # Voices of another program.
            if identifier.startswith("mb/"):
                continue
            for priority, language in _languages(voice.languages):
                if language not in best or priority < best[language][0]:
                    best[language] = priority, identifier
        return {language: identifier for language, (_, identifier) in sorted(best.items())}


def _languages(address: int) -> Iterator[tuple[int, str]]:
    while (priority := ctypes.c_ubyte.from_address(address).value) != 0:
        text = ctypes.string_at(address + 1)
        yield priority, text.decode(errors="replace").lower()
        address += len(text) + 2
