"""What another process of the server needs to use a model on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearfar.compiler.bundle.folder import Bundle, ExportBundle

from ..images.options import ImageOptions
from ..receipts.issuer import Issuer


@dataclass(frozen=True, slots=True)
class LocalShare:
    """``socket`` is the path of `RemoteEngine.share`; ``memory_bytes`` the model's memory on its device; ``images``
    which images it reads; ``issuer`` signs receipts, also in the other processes.
    """

    bundle: Bundle | ExportBundle
    name: str
    socket: str
    memory_bytes: int | None
    images: ImageOptions = field(default_factory=ImageOptions)
    issuer: Issuer | None = None

    @property
    def engine(self) -> str:
        """Another one for a model that was unloaded and loaded again."""
        return self.socket


@dataclass(frozen=True, slots=True)
class SpeechShare:
    """Of a model that transcribes sound, which the main process does. ``engine`` is unique."""

    bundle: Bundle | ExportBundle
    name: str
    engine: str
    device: str
    memory_bytes: int | None
