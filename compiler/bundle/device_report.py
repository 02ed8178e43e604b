"""The report of a probe: what a page measured on a device, and what it predicts of a bundle there. `nearfar devices`
reads a folder of such files; `schema.py` writes the types for the page, which makes them.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from ..ir.expr import Count, Natural, Positive
from .entries import Activation, AdapterEntry, Entry, Sha256

REPORT_FORMAT = "nearfar-probe-2"


class Predicted(Entry):
    """The value of the last field is predicted; it is between ``low`` and ``high``."""

    low: Positive
    high: Positive

    @model_validator(mode="after")
    def _is_between(self) -> Self:
        *_, (name, value) = self
        if not self.low <= value <= self.high:
            raise ValueError(f"{name} {value:g} is not between {self.low:g} and {self.high:g}")
        return self


class PredictedFirstToken(Predicted):
    """The seconds from a prompt of ``prompt_tokens`` to the first token of the answer, between ``low`` and ``high``."""

    prompt_tokens: Count
    seconds: Positive


class PredictedDecode(Predicted):
    """The tokens per second of an answer behind ``context`` tokens, between ``low`` and ``high``."""

    context: Count
    tokens_per_second: Positive


class PredictedEncode(Predicted):
    """The seconds in which an encoder reads a batch of ``texts``, each of ``tokens``, between ``low`` and ``high``."""

    texts: Count
    tokens: Count
    seconds: Positive


class ReportDevice(Entry):
    """``runs_on_cpu``: WebGPU runs without a GPU. ``platforms``: the rules that apply (web/src/probe/platforms.ts).
    ``memory_gb`` and ``cores`` as the browser rounds them; None if it does not say.
    """

    adapter: AdapterEntry
    features: list[str]
    runs_on_cpu: bool
    user_agent: str
    platforms: list[str]
    memory_gb: Positive | None
    cores: Count | None


class ReportMemory(Entry):
    """In bytes: what the model needs on the device with its complete context, what could be allocated of that, and the
    most that a rule of the platform allows; None without such a rule.
    """

    needed: Natural
    allocated: Natural
    limit: Natural | None


class ReportTest(Entry):
    """Whether the device computes the probe's layers correctly, as the self-test of a bundle: ``largest_deviation`` is
    the largest error of a logit, relative to the largest logit.
    """

    state: Literal["passed", "passed-with-switched-off", "untested"]
    switched_off: list[str]
    largest_deviation: float | None


class Measured(Entry):
    """``weight_bytes_per_second``: of a token's step, or a short text's, weights divided by time.
    ``copy_bytes_per_second``: of a large copy on the device, read and written bytes. ``dispatch_us``: the host's time
    for a dispatch. ``round_trip_ms``: of an empty submission. ``sustained``: the speed at the end of the measurement,
    relative to that at its start.
    """

    weight_bytes_per_second: Positive
    copy_bytes_per_second: Positive | None
    dispatch_us: Positive
    round_trip_ms: Positive
    sustained: Positive


class Fit(Entry):
    """How the bundle fits: the dtype of activations, the tokens of a sequence, those of prompts in a step, or of texts
    in a batch of an encoder, and the memory budget; None if it needs none.
    """

    activation: Activation
    context: Count
    prefill_chunk: Count
    memory_budget: Natural | None


class ReportTime(Entry):
    """What the probe did for ``ms``. ``runs``: how often it was measured; 0 for what is no measurement, and for one
    that was left out because the time was spent, of which the prediction's interval is wider.
    """

    step: str
    ms: float
    runs: Natural


class Refusal(Entry):
    """Why the bundle does not run: ``message`` says what to do; ``found`` and ``needed`` are bytes or limits if there
    are any.
    """

    reason: Literal["webgpu", "features", "limits", "memory", "wrong"]
    message: str
    found: float | None
    needed: float | None


class PredictedSpeed(Entry):
    """As the router knows a side's speed (web/src/shared/decision/speed.ts)."""

    prefill_tokens_per_second: Positive
    decode_tokens_per_second: Positive


class DeviceReport(Entry):
    """``bundle`` is the hash of its manifest. ``probe_ms``: the time of the probe, of which its download is a part, of
    ``bytes_read``, and ``times`` its parts. A model that generates text has ``speed``, ``first_token`` and ``decode``,
    an encoder ``encode``. Fields are None if the probe ended before they were measured; ``refusals`` is empty if the
    model will run.
    """

    format: Literal["nearfar-probe-2"]
    date: str
    model: str
    quantization: str
    bundle: Sha256
    device: ReportDevice
    probe_ms: Positive
    times: list[ReportTime]
    bytes_read: Natural
    test: ReportTest | None
    measured: Measured | None
    memory: ReportMemory | None
    fit: Fit | None
    speed: PredictedSpeed | None
    first_token: list[PredictedFirstToken]
    decode: list[PredictedDecode]
    encode: list[PredictedEncode]
    refusals: list[Refusal]
