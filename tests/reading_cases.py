"""How sounds are cut into windows, which both languages must do alike.

``python tests/reading_cases.py`` writes `tests/conformance/sound_windows.json`, with which both are compared.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from sounds import pattern

from nearfar.compiler.ir.spec import AudioSpec
from nearfar.compiler.runtime.audio.readings import reading_of
from nearfar.compiler.runtime.audio.windows import row_frames, rows_of_window
from nearfar.compiler.runtime.batch import FloatArray

VECTORS = Path(__file__).parent / "conformance/sound_windows.json"
LAYERS: dict[str, Any] = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "head_dim": 8, "intermediate_size": 8}
AUDIO = {
    "overlapping": AudioSpec(0, 127, 64, 6, 448, 42, rows_behind=2, **LAYERS),
    "apart": AudioSpec(0, 80, 80, 4, 320, 50, **LAYERS),
    "mel": AudioSpec(20, 400, 160, 2, 80, 50, **LAYERS),
}
# The samples of each sound, and where it is quiet: the first sample and the last one. Windows have a second.
SOUNDS = (
    (1, ()),
    (894, ()),
    (895, ()),
    (1278, ()),
    (1279, ()),
    (15_999, ()),
    (16_000, ()),
    (16_001, ()),
    (40_000, ((12_000, 16_000), (28_500, 29_000))),
    (33_333, ((0, 33_333),)),
)


def sound(samples: int, quiet: tuple[tuple[int, int], ...]) -> FloatArray:
    found = pattern(samples)
    for start, stop in quiet:
        found[start:stop] *= np.float32(0.001)
    return found


def cases() -> list[dict[str, Any]]:
    made = []
    for name, audio in AUDIO.items():
        for samples, quiet in SOUNDS:
            reading, seek, windows = reading_of(sound(samples, quiet), audio, 1), 0, []
            while seek < reading.count:
                frames, window = reading.window(seek)
                rows = rows_of_window(audio, window)
                # The last one is near the end of the sound.
                end = min(len(rows) - 1, frames // audio.frames_of_row) if audio.mel_bins else len(rows) - 1
                places = [(len(rows) - 1, 0), (0, audio.row_elements - 1), (len(rows) // 2, 7), (end, 7)]
                windows.append(
                    {
                        "seek": seek,
                        "frames": frames,
                        "rows": len(rows),
                        "lastFrames": None if audio.mel_bins else int(row_frames(audio, len(window))[-1]),
                        "numbers": [[*place, round(float(rows[place]), 7)] for place in places],
                    }
                )
                seek += frames
            case = {"audio": name, "samples": samples, "quiet": quiet, "isLong": reading.is_long, "windows": windows}
            made.append(case)
    return made


def main() -> None:
    audio = {name: asdict(each) for name, each in AUDIO.items()}
    VECTORS.write_text(json.dumps({"audio": audio, "cases": cases()}) + "\n")


if __name__ == "__main__":
    main()
