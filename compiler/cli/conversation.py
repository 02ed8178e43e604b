"""A conversation with a model on this machine: what was said, and how the model answers.

The keys and values of earlier turns stay in the runner, so a new turn computes only its own tokens. If the context is
full, the oldest turns are left out; the system prompt stays.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..ir.sampling import DEFAULTS, Sampler
from ..runtime.batch import FloatArray
from ..runtime.errors import RequestError
from ..runtime.images.patches import PreparedImage
from ..runtime.media import encode_media, placed_features
from ..runtime.patches import image_features
from ..runtime.runner import Runner
from ..runtime.text.reasoning import Parts
from ..runtime.text.stop_strings import StopAutomaton
from ..store.parameters import Parameters
from .answer import Answer, Answerer
from .messages import ReadMessage, read_message

# The share of the context that older turns leave free for the answer.
ANSWER_SHARE = 0.25
# The variable of chat templates that switches reasoning on and off.
SWITCH = "enable_thinking"

Message = Mapping[str, Any]


class Reply(NamedTuple):
    """``dropped`` old messages were left out for it."""

    answer: Answer
    dropped: int


@dataclass(frozen=True, slots=True)
class Said:
    """A message in OpenAI's form, and as the model reads it."""

    message: Message
    read: ReadMessage


def sampler_of(fields: Mapping[str, Any], *, random: bool = False) -> Sampler:
    """The sampler of parameters by the names of OpenAI's API, which is greedy unless they set a temperature.
    ``random``: with another seed each time. Raises RequestError.
    """
    seed = secrets.randbits(32) if random else fields.get("seed", 0)
    return Sampler(state=seed, **{name: fields[name] for name in DEFAULTS if name in fields})


class Conversation:
    """``model`` is its name for the user. ``messages`` always precede the conversation. Settings are changed with `set`
    and `think`.
    """

    def __init__(
        self,
        answerer: Answerer,
        model: str,
        *,
        system: str | None = None,
        parameters: Parameters | None = None,
        messages: Sequence[Message] = (),
    ) -> None:
        self.model, self.system, self.parameters = model, system, Parameters()
        self.manifest = answerer.runner.manifest
        self._answerer = answerer
        self.set(parameters or Parameters())
        self.thinks: bool | None = None
        self._begun = [self._said(message, "a message of the model") for message in messages]
        self._turns: list[Said] = []
        # What the runner's keys and values belong to: token ids, and for those of pictures numbers below zero.
        self._cached: list[int] = []
        self._numbers: dict[str, int] = {}
        self._features: dict[str, FloatArray] = {}

    @property
    def context(self) -> int:
        """The longest sequence in tokens."""
        return min(self.manifest.context, self.parameters.num_ctx or self.manifest.context)

    @property
    def cached_tokens(self) -> int:
        """The number of tokens of the context that the conversation occupies."""
        return len(self._cached)

    @property
    def messages(self) -> list[Message]:
        """What was said, in OpenAI's form, without the system prompt and the messages that always precede."""
        return [each.message for each in self._turns]

    @property
    def device(self) -> str:
        return self._answerer.runner.device

    @property
    def template(self) -> str:
        template = self._answerer.tokenizer.chat_template
        return "" if template is None else str(template.source)

    def clear(self) -> None:
        self._turns = []

    def set(self, parameters: Parameters) -> None:
        """Answer with these parameters from now on. Raises RequestError."""
        if (parameters.num_ctx or 0) > self.manifest.context:
            raise RequestError(
                f"num_ctx is {parameters.num_ctx}, and the bundle's context is {self.manifest.context} tokens; compile "
                "it with a larger --context"
            )
        fields = parameters.fields()
        sampler = sampler_of(fields, random=parameters.seed == -1)
        self._answerer = replace(self._answerer, sampler=sampler, stops=StopAutomaton(fields.get("stop", ())))
        self.parameters = parameters

    def think(self, thinks: bool) -> None:
        """Raises RequestError for a model whose reasoning cannot be switched."""
        if SWITCH not in self.template:
            raise RequestError(f"the chat template of {self.model} has no switch for reasoning")
        self.thinks = thinks

    def load(self, messages: Sequence[Message], where: str, folder: Path) -> None:
        """Replace what was said. Raises RequestError, which begins with ``where``; nothing has changed then."""
        self._turns = [
            self._said(message, f"{where}messages[{index}]", folder) for index, message in enumerate(messages)
        ]

    def send(self, content: Any, write: Callable[[Parts], object], cancelled: Callable[[], bool]) -> Reply:
        """Answer a message: a text, or parts in OpenAI's form.

        Raises RequestError for a message that the template refuses or that does not fit. The conversation is then
        unchanged.
        """
        turns, dropped = [*self._turns, self._said({"role": "user", "content": content}, "the message")], 0
        prompt, pictures = self._encode(turns)
        while len(prompt) + self._room > self.context and len(turns) > 1:
            # A turn is a message and its answer.
            turns, dropped = turns[2:], dropped + 2
            prompt, pictures = self._encode(turns)
        remaining = max(1, self.context - len(prompt) + 1)
        limit = min(self._max_tokens or remaining, remaining)
        named = self._named(prompt, pictures)
        cached = self._kept(named)
        self._cached = self._cached[:cached]
        see = partial(placed_features, self._answerer.runner, prompt, pictures, see=self._see)
        answer = self._answerer.answer(
            prompt, limit, write, cached=cached, cancelled=cancelled, features=see if pictures else tuple
        )
        if answer.token_ids:
            # The last token was sampled, but its keys and values were not computed.
            self._cached = [*named, *answer.token_ids[:-1]]
            said = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
            message = {"role": "assistant", "content": answer.text, **said}
            self._turns = [*turns, self._said(message, "the answer")]
        return Reply(answer, dropped)

    @property
    def _room(self) -> int:
        """The tokens that older turns leave to the answer."""
        share = int(ANSWER_SHARE * self.context)
        return min(self._max_tokens or share, share)

    @property
    def _max_tokens(self) -> int | None:
        """Of an answer; None for the rest of the context."""
        limit: int | None = self.parameters.fields().get("max_tokens")
        return limit

    def _said(self, message: Message, where: str, folder: Path = Path()) -> Said:
        return Said(message, read_message(dict(message), where, self.manifest, folder))

    def _encode(self, turns: Sequence[Said]) -> tuple[list[int], list[PreparedImage]]:
        said = [*self._begun, *turns]
        messages = [each.read.message for each in said]
        if self.system:
            messages = [{"role": "system", "content": self.system}, *messages]
        pictures = [picture for each in said for picture in each.read.pictures]
        sounds = [sound for each in said for sound in each.read.sounds]
        if sounds:
            raise RequestError("a conversation has no recordings; ask about one with nearfar run --audio and a prompt")
        variables = None if self.thinks is None else {SWITCH: self.thinks}
        tokenizer = self._answerer.tokenizer
        if not pictures:
            return tokenizer.encode_chat(messages, variables=variables), []
        return encode_media(tokenizer, self.manifest, messages, pictures, variables=variables), pictures

    def _named(self, prompt: Sequence[int], pictures: Sequence[PreparedImage]) -> list[int]:
        """The prompt's tokens, with a number of its own for those of each picture: two pictures have the same ids."""
        if not pictures:
            return list(prompt)
        assert self.manifest.images is not None
        numbers = [
            self._numbers.setdefault(picture.key, -1 - len(self._numbers))
            for picture in pictures
            for _ in range(sum(picture.features))
        ]
        own, placeholder = iter(numbers), self.manifest.images.prompt.placeholder_id
        return [next(own) if token == placeholder else token for token in prompt]

    def _kept(self, named: Sequence[int]) -> int:
        """How many of the prompt's tokens have their keys and values in the runner."""
        cached = min(common_length(self._cached, named), len(named) - 1)
        windows = any(group.window is not None for group in self._answerer.runner.groups)
        # States of recurrent layers, and pages that a window uses again, do not have what was in them before.
        rewinds = not windows and not self.manifest.keeps_states
        return cached if rewinds or cached == len(self._cached) else 0

    def _see(self, runner: Runner, picture: PreparedImage) -> FloatArray:
        """The features of a picture, which were computed when it was sent."""
        if picture.key not in self._features:
            self._features[picture.key] = image_features(runner, picture)
        return self._features[picture.key]


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the longest common prefix of two sequences."""
    return next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
