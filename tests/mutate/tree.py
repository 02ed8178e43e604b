"""A copy of the working tree in which a mutation is tried, so that the tree itself never holds a bug."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .mutation import Mutation

# Folders that git ignores and that the tests need. The copy links to them.
LINKED = (".venv", "web/node_modules")
# All copies share compiled kernels: those of a mutated template have other keys.
KERNELS = Path(__file__).resolve().parents[2] / "build/kernels"


class Tree:
    """A copy of all files that git does not ignore. Its folder is called ``nearfar``, so that Python finds the
    packages in the copy if the folder around it is on the path.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.path = folder / "nearfar"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            # A deleted file is listed until it is committed.
            if (root / name).is_file() and not (root / name).is_symlink():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, self.path / name)
        for name in LINKED:
            if (root / name).exists():
                (self.path / name).symlink_to((root / name).resolve())

    @property
    def environment(self) -> Mapping[str, str]:
        paths = [str(self.path.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NEARFAR_KERNEL_CACHE": str(KERNELS)}

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Raises MutationError if the mutation does not fit its file."""
        path = self.path / mutation.file
        original = path.read_text()
        self._write(path, mutation.applied(original))
        try:
            yield
        finally:
            self._write(path, original)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        # Python takes compiled code for current if its source has the same size and the same second.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
