"""ImageReader: the images of requests, from their URLs to tiles of pixels, in a process with limits of time and
memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from importlib.util import find_spec

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.errors import RequestError, ToolError, Unavailable
from nearfar.compiler.runtime.images.patches import CutImage

from ..processes.worker import WorkerEnded, WorkerLimits, WorkerProcess
from ..text.chat_prompt import ChatImage
from ..text.fair_turns import FairTurns
from ..text.requests import context_overflow
from .image_urls import ImageUrls
from .options import ImageOptions
from .worker import ReadJob

READ_SECONDS = 20.0
MEMORY_BYTES, KEPT_BYTES = 1 << 30, 256 << 20
# Of tiles that are retained: those of a picture take 13 MB at most if the model reads 17 tiles of 512 x 512 pixels.
RECENT_BYTES = 64 << 20
CODE = "invalid_image"


class ImageReader:
    """Used from one event loop. The process starts when it is first needed, and again after it was ended. ``urls``
    None: those of the options.

    Raises ToolError if the decoders are not installed.
    """

    def __init__(
        self, spec: ImageSpec, options: ImageOptions, urls: ImageUrls | None = None, seconds: float = READ_SECONDS
    ) -> None:
        if find_spec("PIL") is None:
            raise ToolError(
                "a model that reads images needs Pillow; run pip install 'nearfar[images]', or leave its tower out "
                "with --text-only"
            )
        self.spec, self._options, self._seconds = spec, options, seconds
        self._urls = urls or ImageUrls(options)
        self._turns = FairTurns()
        # By the hash of the file: each turn of a chat sends its images again.
        self._recent: OrderedDict[bytes, CutImage] = OrderedDict()
        limits = WorkerLimits(MEMORY_BYTES, KEPT_BYTES, int(seconds) + 10)
        self._process = WorkerProcess(f"{__package__}.worker", limits)

    async def read(self, images: Sequence[ChatImage], context: int, client: str) -> list[CutImage]:
        """Raises RequestError, whose details name the parameter, and Unavailable. Images after those that fill the
        ``context`` are not read.
        """
        most = self._options.max_images
        if len(images) > most:
            raise RequestError(
                f"the messages have {len(images)} images; at most {most} are supported", param=images[most].param
            )
        cuts, tokens = list[CutImage](), 0
        for image in images:
            cuts.append(await self._read(image, client))
            tokens += sum(cuts[-1].features)
            if tokens > context:
                raise context_overflow("messages", f"at least {tokens}", context)
        return cuts

    async def _read(self, image: ChatImage, client: str) -> CutImage:
        try:
            data = await self._urls.read(image.url)
            digest = sha256(data).digest()
            async with self._turns.turn(client):
                cut = self._recent.get(digest) or await self._cut(data)
            self._retain(digest, cut)
            return cut
        except RequestError as error:
            message = f"{image.param}: {error.message.removeprefix('images: ')}"
            raise RequestError(message, **{"code": CODE, **error.details, "param": image.param}) from error

    def _retain(self, digest: bytes, cut: CutImage) -> None:
        self._recent[digest] = cut
        self._recent.move_to_end(digest)
        while sum(map(size_bytes, self._recent.values())) > RECENT_BYTES:
            self._recent.popitem(last=False)

    async def _cut(self, data: bytes) -> CutImage:
        job = ReadJob(data, self.spec, self._options.max_pixels)
        try:
            cut = await self._process.call(job, self._seconds)
        except MemoryError as error:
            raise RequestError("the picture needs too much memory; make it smaller") from error
        except WorkerEnded as ended:
            if ended.timed_out:
                raise RequestError(
                    f"the picture takes more than {self._seconds:g} s to read; make it smaller"
                ) from ended
            if ended.fault:
                raise RequestError("the picture needs too much memory, or is damaged; make it smaller") from ended
            raise Unavailable("the process that decodes images was ended; send the request again") from ended
        assert isinstance(cut, CutImage)
        return cut

    def close(self) -> None:
        self._process.close()


def size_bytes(cut: CutImage) -> int:
    return sum(tile.nbytes for tile in cut.tiles)
