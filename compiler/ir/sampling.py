"""Choose the next token from logits: the definition of each setting, its bounds and its default, what it does in numpy,
and the random number generator. A new setting is a field of `Sampling` and of `Settings`, in the order of a row.

`ir/ops/` and every runtime choose as `choose_token` does, after `adjust_logits`; `tests/conformance/sampling.json`
holds vectors. A row's settings are eight float32. Flags select which states of its slot apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints, overload

import numpy as np
import numpy.typing as npt
from annotated_types import Interval
from typing_extensions import Doc

from ..runtime.errors import RequestError

# Flags of a sampled row: which states of its slot apply to it, and whether its token is marked (`watermark.py`).
COUNTS, BIAS, MASK, MARK = 1, 2, 4, 8
# The low 16 bits of a token's count are its number of occurrences in the answer. The next bit is set if it occurs in
# the prompt.
IN_PROMPT = 1 << 16
# The value of a masked logit: finite, and below every logit that a model computes.
MASKED = np.float32(-3.0e38)
# The number of most likely tokens listed for a row that requests alternatives, or the vocabulary size if that is
# smaller.
ALTERNATIVES = 20
WORD = 0xFFFFFFFF
# The increment of mulberry32's state for each number.
STRIDE = 0x6D2B79F5

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]


# The bounds of the engine. Requests of the API have these types too, some with narrower bounds (`schema/common.py`).
Temperature = Annotated[float, Interval(ge=0), Doc("0 always chooses the most likely token.")]
TopK = Annotated[int, Interval(ge=0), Doc("Choose among this number of the most likely tokens; 0 for all.")]
TopP = Annotated[
    float,
    Interval(gt=0, le=1),
    Doc("Choose among the most likely tokens whose probabilities add up to this value; 1 for all."),
]
MinP = Annotated[
    float,
    Interval(ge=0, le=1),
    Doc("Choose among tokens whose probability is at least this fraction of the highest one; 0 for all."),
]
RepetitionPenalty = Annotated[
    float,
    Interval(gt=0),
    Doc(
        "Divides the positive and multiplies the negative logits of tokens in the prompt or the answer; 1 changes "
        "nothing. Keskar et al. 2019."
    ),
]
FrequencyPenalty = Annotated[
    float, Interval(), Doc("Subtracted from a token's logit for each occurrence in the answer.")
]
PresencePenalty = Annotated[
    float, Interval(), Doc("Subtracted once from a token's logit if the answer contains the token.")
]
Seed = Annotated[
    int,
    Interval(ge=0, le=WORD),
    Doc("A 32-bit unsigned integer; the same seed draws the same tokens. Random by default."),
]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of an answer are chosen. ``logit_bias`` is added to the logits of its tokens; ``seed`` None is a
    random one.
    """

    temperature: Temperature = 0.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0
    frequency_penalty: FrequencyPenalty = 0.0
    presence_penalty: PresencePenalty = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: Seed | None = None

    @property
    def penalizes(self) -> bool:
        """Whether earlier tokens change the logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0

    def changed(self) -> dict[str, Any]:
        """The settings that are not the defaults, by name."""
        return {name: value for name, default in DEFAULTS.items() if (value := getattr(self, name)) != default}


class Settings(NamedTuple):
    """How one row's token is chosen; the order is that of the columns of the batch input `sample_settings`.

    temperature 0 chooses the largest logit, the first of equals. ``draw`` is the random number, in [0, 1).
    """

    temperature: float = 0.0
    top_k: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    draw: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0


GREEDY = Settings()
DEFAULT_SAMPLING = Sampling()
# Columns of a row.
TEMPERATURE, DRAW = Settings._fields.index("temperature"), Settings._fields.index("draw")
# The numbers among the fields of `Sampling`, with their defaults and types.
DEFAULTS = {name: getattr(DEFAULT_SAMPLING, name) for name in Settings._fields if name != "draw"}
TYPES = {name: get_type_hints(Sampling, include_extras=True)[name] for name in DEFAULTS} | {"seed": Seed}
# At this temperature all weights are 1: e^(-1e-20) for the lowest logit that a model computes.
FLAT = 1e30


def check_sampling(sampling: Sampling) -> None:
    """Raises RequestError, whose details name the parameter, for a number that is out of its bounds."""
    for name, declared in TYPES.items():
        value = getattr(sampling, name)
        kind, bounds = kind_and_bounds(declared)
        kinds = (int, np.integer) if kind is int else (int, float, np.number)
        if name == "seed" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds) or not within(value, bounds):
            range_text = described("an integer" if kind is int else "a number", bounds)
            raise RequestError(f"{name} is {value!r}; it must be {range_text}", param=name)


def kind_and_bounds(declared: Any) -> tuple[type, Interval]:
    """The type and the bounds of one of the annotated types."""
    kind, *others = get_args(declared)
    return kind, next(each for each in others if isinstance(each, Interval))


def within(value: Any, bounds: Interval) -> bool:
    least, above, most = bounds.ge, bounds.gt, bounds.le
    return math.isfinite(value) and (
        (least is None or value >= least) and (above is None or value > above) and (most is None or value <= most)
    )


def described(name: str, bounds: Interval) -> str:
    """The words of `web/src/shared/declared.ts`."""
    least, above, most = bounds.ge, bounds.gt, bounds.le
    if above is not None:
        return f"{name} above {above}" + ("" if most is None else f" and at most {most}")
    if least is None:
        return name
    return f"{name} of at least {least}" if most is None else f"{name} from {least} to {most}"


def choosing(token_ids: npt.ArrayLike, vocab_size: int) -> npt.NDArray[np.float32]:
    """Rows of settings (R, 8) that choose ``token_ids`` (R,) whatever the logits are, so that a runtime reports their
    log-probabilities: all weights are equal, and a draw is the middle of its token's share.
    """
    ids = np.asarray(token_ids, np.float64)
    rows = np.tile(np.array(GREEDY, np.float32), (len(ids), 1))
    rows[:, TEMPERATURE] = FLAT
    rows[:, DRAW] = (ids + 0.5) / vocab_size
    return rows


def choose_token(logits: FloatArray, settings: Settings) -> int:
    """The next token of logits (V,).

    Weights are exp((logit - max) / temperature). The top_k largest logits are kept; of those, the fewest largest whose
    weights reach top_p of their sum; of those, the ones whose weight is at least min_p times the largest weight. Logits
    equal to the last one kept are kept as well. The token is the first, in the order of the vocabulary, at which the
    running sum of kept weights exceeds draw times their sum.
    """
    if settings.temperature == 0:
        return int(np.argmax(logits))
    x = logits.astype(np.float64)
    weights = np.exp((x - x.max()) / settings.temperature)
    kept = np.ones(len(x), bool)
    top_k = int(settings.top_k)
    if 0 < top_k < len(x):
        kept = x >= np.partition(x, -top_k)[-top_k]
    if settings.top_p < 1:
        order = np.argsort(-x, kind="stable")
        order = order[kept[order]]
        mass = np.cumsum(weights[order])
        kept &= x >= x[order[np.searchsorted(mass, settings.top_p * mass[-1])]]
    kept &= weights >= settings.min_p
    sums = np.cumsum(weights * kept)
    chosen = int(np.searchsorted(sums, settings.draw * sums[-1], side="right"))
    return min(chosen, int(np.flatnonzero(weights * kept)[-1]))


def adjust_logits(
    logits: FloatArray, settings: Settings, flags: int, counts: IntArray, bias: FloatArray, mask: IntArray
) -> npt.NDArray[np.float32]:
    """Logits (V,) after the adjustments that the flags select, in this order.

    COUNTS: the logit of a token in the prompt or answer is divided by repetition_penalty if it is positive, else
    multiplied by it (Keskar et al. 2019). If the token occurs n > 0 times in the answer, n times frequency_penalty and
    once presence_penalty are then subtracted. For counts (V,), see IN_PROMPT. BIAS: bias (V,) is added. MASK: tokens
    whose bit of mask (ceil(V / 32),) is not set become MASKED; the least significant bit is first.
    """
    x: npt.NDArray[np.float32] = logits.astype(np.float32)
    if flags & COUNTS:
        penalty, times = np.float32(settings.repetition_penalty), counts & (IN_PROMPT - 1)
        x = np.where(counts != 0, np.where(x > 0, x / penalty, x * penalty), x)
        x = x - times.astype(np.float32) * np.float32(settings.frequency_penalty)
        x = np.where(times > 0, x - np.float32(settings.presence_penalty), x)
    if flags & BIAS:
        x = x + bias.astype(np.float32)
    if flags & MASK:
        bits = np.unpackbits(np.ascontiguousarray(mask, "<i4").view(np.uint8), count=len(x), bitorder="little")
        x = np.where(bits, x, MASKED)
    return x


def token_counts(vocab_size: int, prompt: Sequence[int], answer: Sequence[int] = ()) -> npt.NDArray[np.int32]:
    """(V,): the counts from which an answer goes on, see `adjust_logits`. They include tokens dropped by a context
    shift.
    """
    counts = np.zeros(vocab_size, np.int32)
    counts[np.asarray(prompt, np.int64)] = IN_PROMPT
    np.add.at(counts, np.asarray(answer, np.int64), 1)
    return counts


@dataclass(slots=True)
class Sampler:
    """One answer's settings, token by token. ``state`` starts as the seed, 0 to 2^32 - 1, and advances with every token
    drawn. The others are those of `Sampling`.
    """

    temperature: float = 0.0
    state: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_sampling(self._sampling)

    @property
    def flags(self) -> int:
        """Which states of the answer's slot apply: the counts of tokens, if earlier tokens change the logits."""
        return COUNTS if self._sampling.penalizes else 0

    def next(self) -> Settings:
        """The next token's settings; greedy settings need no random number."""
        draw = self.draw() if self.temperature else 0.0
        return Settings(**{name: getattr(self, name) for name in DEFAULTS}, draw=draw)

    @property
    def _sampling(self) -> Sampling:
        return Sampling(**{name: getattr(self, name) for name in DEFAULTS}, seed=self.state)

    def draw(self) -> float:
        """The next number of mulberry32 (Ettinger 2017), in [0, 1)."""
        number = draw_at(self.state, 0)
        self.state = (self.state + STRIDE) & WORD
        return number


@overload
def draw_at(seed: int, index: int) -> float: ...
@overload
def draw_at(seed: npt.NDArray[np.int64], index: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]: ...
def draw_at(seed: Any, index: Any) -> Any:
    """The ``index``-th number in [0, 1) of a seed's stream, as `Sampler` draws them one by one. Arrays are processed
    elementwise.

    So the random number for a token does not depend on other draws, or on whether the answer was restarted.
    """
    state = (seed + (index + 1) * STRIDE) & WORD
    t = ((state ^ (state >> 15)) * (state | 1)) & WORD
    t ^= (t + ((t ^ (t >> 7)) * (t | 61))) & WORD
    return ((t ^ (t >> 14)) & WORD) / 4294967296
