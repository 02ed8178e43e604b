"""Writes the recordings that the demo transcribes: ``python -m demo_ears.recordings``. Voices that training never hears
say them.
"""

from __future__ import annotations

import wave
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nearfar.compiler.demo import RECORDINGS
from nearfar.compiler.ir.speech import SAMPLE_RATE

from .voices import Samples, held_out_utterances

# The numbers of short utterances about a light, a thermostat and a door.
CHOSEN: Mapping[str, int] = MappingProxyType({"light.wav": 3, "thermostat.wav": 95, "door.wav": 55})


def write_wav(path: Path, samples: Samples) -> None:
    """With 16 bits a sample."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((samples * 32767).round().astype("<i2").tobytes())


if __name__ == "__main__":
    utterances = held_out_utterances(1 + max(CHOSEN.values()))
    for recording in RECORDINGS:
        recording.parent.mkdir(exist_ok=True)
        utterance = utterances[CHOSEN[recording.name]]
        write_wav(recording, utterance.samples)
        print(f"{recording.name}: {utterance.text} ({utterance.voice})")
