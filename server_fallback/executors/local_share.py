"""Lets another process of the server use the engine of a model on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from nearfar.compiler.bundle.folder import Bundle, ExportBundle

from ..images.options import ImageOptions


@dataclass(frozen=True, slots=True)
class LocalShare:
    """``socket`` is the path of `RemoteEngine.share`; ``memory_bytes`` the model's memory on its device; ``images``
    which images it reads.
    """

    bundle: Bundle | ExportBundle
    name: str
    socket: str
    memory_bytes: int | None
    images: ImageOptions = field(default_factory=ImageOptions)
