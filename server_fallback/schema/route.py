"""The route of an answer of a pair of sides: which side gave it, and why (extension)."""

from __future__ import annotations

from typing import Literal

from .common import LeftOut, MaskedText, Reply

Side = Literal["near", "far"]


class Description(Reply):
    """The ``text`` that stands for a picture or sound, whose place in the request is ``path``, such as
    "messages[0].content[1]".
    """

    path: str
    kind: Literal["picture", "video", "sound", "file"]
    text: str


class Route(Reply):
    """``side`` wrote the end of the answer, for ``reason``. ``scores`` are the values that the decision compared, null
    if unknown.

    ``switched_at`` is null, or the number of characters (code points) of the answer before the last switch: 0 if the
    earlier text is withdrawn. In a stream the first chunk has a route, the first after a switch, and the last.
    """

    side: Side
    reason: str
    scores: dict[str, float | None]
    switched_at: int | None = None
    described: LeftOut[list[Description]] = None
    """What far receives of the request's media, word for word, if the policy lets only such texts leave."""
    masked: LeftOut[list[MaskedText]] = None
    """What was sent to far in place of texts with something private, word for word, if the policy masks them."""
