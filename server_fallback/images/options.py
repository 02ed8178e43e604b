"""ImageOptions: which images of requests a server reads."""

from __future__ import annotations

from typing import Annotated

from nearfar.compiler.options import Count, Flag, SizeBytes, options

from ..option_types import Seconds

ANY_HOST = "*"
IMAGE_CACHE_BYTES = 256 << 20


def host_pattern(text: str) -> str:
    """A host name, with a port unless it is the usual one; "*.example.org" stands for all names below it, "*" for
    all.
    """
    name = text.lower()
    if not name or any(character in name for character in "/@ ") or "*" in name.removeprefix("*.").removeprefix("*"):
        raise ValueError(f"{text!r} is not a host; write images.example.org, *.example.org, HOST:PORT, or * for any")
    return name


HostPattern = Annotated[str, Flag(metavar="HOST", parse=host_pattern)]


@options
class ImageOptions:
    """Only public addresses are fetched from, whatever the names. ``fetch_seconds`` and ``max_fetched_bytes`` bound one
    image, ``max_pixels`` its width times its height (None: as in pages), ``max_images`` those of a request.
    """

    allow_image_urls: tuple[HostPattern, ...] = ()
    """host from which images of requests are fetched: images.example.org, *.example.org, or * for any public host; may
    be repeated (default: none; images come as data: URLs)"""
    image_cache_bytes: Annotated[SizeBytes, Flag(("--image-cache",))] = IMAGE_CACHE_BYTES
    """memory for the features of images, so that a second question about one computes only the new text (default:
    256MiB)"""
    max_images: Count = 16
    """images of one request"""
    max_videos: Count = 4
    """videos of one request, which need pip install 'nearfar[video]'"""
    fetch_seconds: Seconds = 10.0
    max_fetched_bytes: int = 16 << 20
    max_pixels: int | None = None

    @property
    def fetches(self) -> bool:
        return bool(self.allow_image_urls)

    def allows(self, host: str) -> bool:
        """Whether images of a host, with or without its port, are fetched."""
        name = host.lower().rstrip(".")
        return any(
            pattern == name
            or (pattern == ANY_HOST and ":" not in name)
            or (pattern.startswith("*.") and name.endswith(pattern[1:]))
            for pattern in self.allow_image_urls
        )
