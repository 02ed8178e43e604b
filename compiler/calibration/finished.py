"""The finished results of a calibration, in a folder beside the output: after an interruption, the next run of the same
job continues from them.

The folder's name holds a hash of everything that the results depend on, so a changed checkpoint, text or option starts
again.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..bundle.new_folder import rename_durably
from ..ir.ops import Array

DIGITS = 16


@dataclass(frozen=True, slots=True)
class Finished:
    """Arrays by name, each in its own file. If the folder is None, nothing is stored."""

    folder: Path | None

    @staticmethod
    def beside(output: Path, fingerprint: str) -> Finished:
        """The folder of the job with this hash; folders of other jobs for the same output are removed."""
        output = Path(os.path.realpath(output))
        folder = output.parent / f".{output.name}.calibration-{fingerprint[:DIGITS]}"
        for other in output.parent.glob(f".{output.name}.calibration-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        return Finished(folder)

    def get(self, name: str) -> Mapping[str, Array] | None:
        """None for a name that was not finished, or whose file is incomplete."""
        if self.folder is None or not self._file(name).is_file():
            return None
        try:
            with np.load(self._file(name), allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            return None

    def put(self, name: str, arrays: Mapping[str, Array]) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / "partial.npz"
        np.savez(partial, **dict(arrays))  # type: ignore[arg-type]
        rename_durably(partial, self._file(name))

    def remove(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}.npz"
