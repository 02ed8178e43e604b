"""ImageReader: the images and videos of requests, from their URLs to tiles of pixels, in a process with limits of time
and memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from importlib.util import find_spec

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.errors import RequestError, ToolError, Unavailable
from nearfar.compiler.runtime.images.data_url import VIDEO
from nearfar.compiler.runtime.images.patches import CutImage

from ..processes.worker import WorkerEnded, WorkerLimits, WorkerProcess
from ..text.chat_images import MOST_WRONG, all_wrong
from ..text.chat_prompt import ChatImage
from ..text.fair_turns import FairTurns
from ..text.requests import context_overflow
from .image_urls import ImageUrls
from .options import ImageOptions
from .worker import ReadJob, VideoJob

READ_SECONDS, VIDEO_SECONDS = 20.0, 60.0
MEMORY_BYTES, KEPT_BYTES = 1 << 30, 256 << 20
# Of tiles that are retained: those of a picture take 13 MB at most if the model reads 17 tiles of 512 x 512 pixels.
RECENT_BYTES = 64 << 20
CODES = {"image": "invalid_image", "video": "invalid_video"}


def decodes_video_files() -> bool:
    """Videos that are sent as frames need no decoder."""
    return find_spec("av") is not None


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
        limits = WorkerLimits(MEMORY_BYTES, KEPT_BYTES, int(max(seconds, VIDEO_SECONDS)) + 10)
        self._process = WorkerProcess(f"{__package__}.worker", limits)

    async def read(self, images: Sequence[ChatImage], context: int, client: str) -> list[CutImage]:
        """Raises RequestError, whose details name the parameter, and Unavailable. The error of several images has the
        messages of the first `MOST_WRONG`. Images after those that fill the ``context`` are not read.
        """
        bounds = {"image": self._options.max_images, "video": self._options.max_videos}
        for kind, most in bounds.items():
            own = [image for image in images if image.kind == kind]
            if len(own) > most:
                raise RequestError(
                    f"the messages have {len(own)} {kind}s; at most {most} are supported", param=own[most].param
                )
        cuts, tokens, wrong = list[CutImage](), 0, list[RequestError]()
        for image in images:
            try:
                cuts.append(await self._read(image, client))
            except RequestError as error:
                wrong.append(error)
                if len(wrong) == MOST_WRONG:
                    break
                continue
            tokens += sum(cuts[-1].features)
            if tokens > context:
                if wrong:
                    break
                raise context_overflow("messages", f"at least {tokens}", context)
        if wrong:
            raise all_wrong(wrong)
        return cuts

    async def _read(self, image: ChatImage, client: str) -> CutImage:
        try:
            job = await self._job(image)
            digest = job.digest()
            async with self._turns.turn(client):
                cut = self._recent.get(digest) or await self._cut(job)
            self._retain(digest, cut)
            return cut
        except RequestError as error:
            message = f"{image.param}: {error.message.removeprefix('images: ').removeprefix('videos: ')}"
            details = {"code": CODES[image.kind], **error.details, "param": image.param}
            raise RequestError(message, **details) from error

    async def _job(self, image: ChatImage) -> ReadJob | VideoJob:
        if image.kind == "image":
            return ReadJob(await self._urls.read(image.url), self.spec, self._options.max_pixels)
        if image.frames:
            frames = [await self._urls.read(url) for url in image.frames]
            return VideoJob(b"", self.spec, tuple(frames), image.fps)
        if not decodes_video_files():
            raise RequestError(
                "videos need PyAV on the server; its operator must run pip install 'nearfar[video]'; send pictures of "
                "the video meanwhile"
            )
        return VideoJob(await self._urls.read(image.url, VIDEO), self.spec)

    def _retain(self, digest: bytes, cut: CutImage) -> None:
        self._recent[digest] = cut
        self._recent.move_to_end(digest)
        while sum(map(size_bytes, self._recent.values())) > RECENT_BYTES:
            self._recent.popitem(last=False)

    async def _cut(self, job: ReadJob | VideoJob) -> CutImage:
        what, seconds = (
            ("picture", self._seconds) if isinstance(job, ReadJob) else ("video", max(self._seconds, VIDEO_SECONDS))
        )
        try:
            cut = await self._process.call(job, seconds)
        except MemoryError as error:
            raise RequestError(f"the {what} needs too much memory; make it smaller") from error
        except WorkerEnded as ended:
            if ended.timed_out:
                raise RequestError(f"the {what} takes more than {seconds:g} s to read; make it smaller") from ended
            if ended.fault:
                raise RequestError(f"the {what} needs too much memory, or is damaged; make it smaller") from ended
            raise Unavailable("the process that decodes images was ended; send the request again") from ended
        assert isinstance(cut, CutImage)
        return cut

    def close(self) -> None:
        self._process.close()


def size_bytes(cut: CutImage) -> int:
    return sum(tile.nbytes for tile in cut.tiles)
