"""Listener: the window of sound that the pages of a runner hold. `web/src/audio/listener.ts` does the same."""

from __future__ import annotations

from ...bundle.manifest import Manifest
from ...shared.script import SharedScript
from ..batch import FloatArray, Source
from ..runner import Runner
from .windows import rest_batch, room_of, rows_of_window, source_of, window_batch


class Listener:
    """Only it may write to the pages of sound of ``runner``.

    Of a window that begins as the last one did, an encoder with a receptive field reads the rows that change, and those
    on which they depend. Their results are those of the whole window.
    """

    def __init__(self, runner: Runner, manifest: Manifest) -> None:
        self._runner, self._manifest = runner, manifest
        # The rows of the window, None if the pages may hold anything.
        self._read: FloatArray | None = None

    def listen(self, window: FloatArray) -> Source:
        """Compute the keys and values of a window, to which all tokens attend until the next one."""
        manifest, audio = self._manifest, self._manifest.spec.audio
        assert audio is not None
        source, before = source_of(manifest, window=window), self._read
        if audio.receptive_field is None:
            self._runner.listen(window_batch(manifest, [window]))
            return source
        rows = rows_of_window(audio, window)
        # What a failure leaves is not known.
        self._read = None
        first, kept = self._rows_to_read(rows, before)
        if first < len(rows):
            self._runner.listen(rest_batch(manifest, rows, first, kept))
        self._read = rows
        return source

    def _rows_to_read(self, rows: FloatArray, before: FloatArray | None) -> tuple[int, int]:
        audio = self._manifest.spec.audio
        assert audio is not None
        assert audio.receptive_field is not None
        field = {"back": audio.receptive_field.back, "ahead": audio.receptive_field.ahead}
        count = 0 if before is None else len(before)
        compared = min(count, len(rows))
        same = compared
        if before is not None:
            differ = (before[:compared] != rows[:compared]).any(axis=1)
            same = int(differ.argmax()) if differ.any() else compared
        windows = {"before": count, "rows": len(rows), "same": same, "room": room_of(self._manifest)}
        found = SharedScript.of_thread().ask("rowsToRead", field, windows)
        return found["first"], found["kept"]
