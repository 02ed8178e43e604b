"""The tokens that end an answer: the union of what a checkpoint's files say.

config.json and generation_config.json (eos_token_id), a GGUF file (eos, eot and eom ids), tokenizer_config.json
(eos_token), and the control token that the chat template writes behind an assistant's turn. A finetune often has its
end of turn in only one of them. Only generated tokens are compared: a prompt may contain any of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from ..runtime.errors import CheckpointError, RequestError
from ..runtime.text.chat_template import ChatTemplate
from ..runtime.text.control_tokens import spells_marker
from ..runtime.text.tokenizer_files import TokenizerFiles, load_backend
from .checkpoint import Checkpoint

_ANSWER, _REASONING = "Zebra7", "Quokka3"
_QUESTION = {"role": "user", "content": "Hi"}
_TURN = {"role": "assistant", "content": _ANSWER}
_REASONED = {**_TURN, "reasoning_content": _REASONING, "thinking": _REASONING}


def with_stops(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint of a model that generates text with all tokens that end its answers, and a note if there are
    none. Others stay as they are.
    """
    if checkpoint.task is not None or not checkpoint.spec.causal:
        return checkpoint
    spec, files = checkpoint.spec, checkpoint.tokenizer
    named = (token for token in (files.eos_token, end_of_turn(files)) if token not in (None, files.unk_token))
    found = [each for token in named if (each := _id_of(files, str(token))) is not None and each < spec.vocab_size]
    stops = tuple(dict.fromkeys((*spec.eos_token_ids, *found)))
    if not stops:
        note = (
            f"{checkpoint.path}: no token ends an answer, so answers end only at max_tokens or a stop text; name the "
            "token with 'eos_token_id' in generation_config.json"
        )
        return replace(checkpoint, notes=(*checkpoint.notes, note))
    return replace(checkpoint, spec=replace(spec, eos_token_ids=stops))


def end_of_turn(files: TokenizerFiles) -> str | None:
    """The control token that the chat template writes behind an assistant's answer; None if it writes none.

    A token that the template also writes inside a turn, between reasoning and answer, does not end it.
    """
    if files.chat_template is None:
        return None
    template = ChatTemplate(files.chat_template, files.special_tokens)
    tokens = sorted(_controls(files), key=len, reverse=True)
    for messages in ([_QUESTION, _TURN, _QUESTION], [_QUESTION, _TURN]):
        behind = _rendered(template, messages).partition(_ANSWER)[2].lstrip()
        end = next((token for token in tokens if behind.startswith(token)), None)
        if end is not None:
            return None if end in _inside_a_turn(template) else end
    return None


def _inside_a_turn(template: ChatTemplate) -> str:
    return _rendered(template, [_QUESTION, _REASONED]).partition(_REASONING)[2].partition(_ANSWER)[0]


def _rendered(template: ChatTemplate, messages: list[dict[str, str]]) -> str:
    """Empty if the template refuses the messages. `compile` itself reports a template that is not valid Jinja."""
    try:
        return template.render(messages, add_generation_prompt=False)
    except (CheckpointError, RequestError):
        return ""


def _controls(files: TokenizerFiles) -> Iterator[str]:
    yield from files.special_tokens.values()
    for token in json.loads(files.content).get("added_tokens") or []:
        if token["special"] or spells_marker(files.chat_template or "", token["content"]):
            yield token["content"]


def _id_of(files: TokenizerFiles, token: str) -> int | None:
    found: int | None = load_backend(files.content, files.where).token_to_id(token)
    return found
