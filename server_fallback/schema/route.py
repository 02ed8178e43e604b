"""What an answer that two sides could give says of which side gave it (extension)."""

from __future__ import annotations

from typing import Literal

from .common import Answer

Side = Literal["near", "far"]


class Route(Answer):
    """``side`` wrote the end of the answer, for ``reason``. ``scores`` are what the decision weighed, null where it is not known.

    ``switched_at`` is null, or the number of characters (code points) of the answer that stand before the last switch: 0 where what came
    before is withdrawn. In a stream the first chunk has a route, the first after a switch, and the last.
    """

    side: Side
    reason: str
    scores: dict[str, float | None]
    switched_at: int | None = None
