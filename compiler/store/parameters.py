"""The parameters of a stored model, by Ollama's names: what its Modelfile and a request's ``options`` set.

Source of names and meanings: github.com/ollama/ollama, docs/modelfile.mdx ("PARAMETER") and api/types.go (`Options`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from annotated_types import Interval
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ..ir.sampling import WORD, FrequencyPenalty, MinP, PresencePenalty, RepetitionPenalty, Temperature, TopP
from ..nearest import did_you_mean, with_advice
from ..runtime.errors import RequestError

# Parameters that we do not have, and what to do instead.
ADVICE: Mapping[str, str] = {
    "draft_num_predict": "start the server with --draft and --draft-tokens",
    "mirostat_eta": "answers are sampled with temperature, top_k, top_p and min_p; leave it out",
    "mirostat_tau": "answers are sampled with temperature, top_k, top_p and min_p; leave it out",
}
MAX_STOPS = 16


class Parameters(BaseModel):
    """What is not given is None, and then that of the model, or the default of the command or the API.

    ``num_gpu`` to ``num_keep`` are accepted and have no effect: they concern speed and memory alone, or what happens
    when the context is full, where an answer ends here. Those after them are accepted with values that switch them off.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    num_ctx: Annotated[int, Interval(ge=1)] | None = None
    """the longest sequence in tokens"""
    num_predict: Annotated[int, Interval(ge=-2)] | None = None
    """at most this many tokens of an answer; 0 and less: as many as the context holds"""
    temperature: Annotated[Temperature, Interval(le=2)] | None = None
    top_k: Annotated[int, Interval(ge=-1)] | None = None
    """-1 or 0 for all tokens"""
    top_p: TopP | None = None
    min_p: MinP | None = None
    seed: Annotated[int, Interval(ge=-1, le=WORD)] | None = None
    """-1 for a random one"""
    stop: Annotated[list[str], Field(max_length=MAX_STOPS)] | str | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: Annotated[PresencePenalty, Interval(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[FrequencyPenalty, Interval(ge=-2, le=2)] | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    num_batch: int | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    numa: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    num_keep: int | None = None
    mirostat: Literal[0] | None = None
    penalize_newline: Literal[True] | None = None
    tfs_z: Annotated[float, Interval(ge=1, le=1)] | None = None
    typical_p: Annotated[float, Interval(ge=1, le=1)] | None = None
    repeat_last_n: Annotated[int, Interval(ge=-1)] | None = None
    """-1: repeat_penalty counts all tokens of the sequence, as it does by default here; 0: it does not apply; another
    number needs a repeat_penalty of 1"""

    @classmethod
    def read(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """``where`` is what errors put before a name, such as "options.". Raises RequestError that names the first
        parameter that is unknown or out of its bounds.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise _refusal(error, where) from error

    @classmethod
    def read_text(cls, values: Iterable[tuple[str, str]], where: str = "") -> Self:
        """From names and texts, as a Modelfile has them; ``stop`` may occur several times. Raises RequestError."""
        found: dict[str, Any] = {}
        for name, text in values:
            if name == "stop":
                found.setdefault(name, []).append(text)
            else:
                found[name] = _number(text)
        return cls.read(found, where)

    @field_validator("stop")
    @classmethod
    def _several(cls, stop: list[str] | str | None) -> list[str] | None:
        return [stop] if isinstance(stop, str) else stop

    @model_validator(mode="after")
    def _counts_all(self) -> Self:
        if self.repeat_last_n not in (None, -1, 0) and self.repeat_penalty not in (None, 1):
            raise ValueError(
                f"a repeat_penalty of the last {self.repeat_last_n} tokens is not supported; set repeat_last_n to -1, "
                "which counts all tokens"
            )
        return self

    def given(self) -> dict[str, Any]:
        """The parameters that are given, by name."""
        return self.model_dump(exclude_none=True)

    def over(self, base: Parameters) -> Parameters:
        """These parameters, and those of ``base`` that are not given here. Raises RequestError if they contradict each
        other.
        """
        return self.read({**base.given(), **self.given()})

    def fields(self) -> dict[str, Any]:
        """The given parameters by the names of OpenAI's API and its extensions, which `nearfar run` uses too."""
        given = self.given()
        found = {name: given[name] for name in _SAME if name in given}
        if given.get("num_predict", 0) > 0:
            found["max_tokens"] = given["num_predict"]
        if given.get("top_k", 0) > 0:
            found["top_k"] = given["top_k"]
        if given.get("seed", -1) >= 0:
            found["seed"] = given["seed"]
        if "repeat_penalty" in given and given.get("repeat_last_n") != 0:
            found["repetition_penalty"] = given["repeat_penalty"]
        return found


_SAME = ("temperature", "top_p", "min_p", "stop", "presence_penalty", "frequency_penalty")


def _number(text: str) -> object:
    """The JSON value of a text; the text itself if it is neither a number nor true or false."""
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _refusal(error: ValidationError, where: str) -> RequestError:
    first = error.errors()[0]
    # An error about several parameters has no place.
    name = str(first["loc"][0]) if first["loc"] else "repeat_last_n"
    shown, param = f"{where}{name[:60]}", f"{where}{name[:60]}"
    if first["type"] == "extra_forbidden":
        advice = ADVICE.get(name) or f"known: {', '.join(Parameters.model_fields)}"
        proposal = "" if name in ADVICE else did_you_mean(name, list(Parameters.model_fields))
        return RequestError(with_advice(f"{shown} is not a parameter here", proposal, advice), param=param)
    message = first["msg"].removeprefix("Value error, ")
    return RequestError(f"{shown}: {message[:1].lower()}{message[1:]}", param=param)
