"""Where pictures stand in the prompts of chats: the texts of `tests/conformance/image_prompts.json`, which transformers
makes, too. The page is compared with the same texts.

``python tests/server_fallback/text/test_image_prompts.py`` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from image_families import FAMILIES, spec_of, write_family
from pydantic import TypeAdapter

from nearfar.compiler.ir.images import ImageSpec
from nearfar.compiler.runtime.images.patches import CutImage, image_layout
from nearfar.compiler.runtime.media import with_pictures
from nearfar.compiler.runtime.text.control_tokens import SENTINEL
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.server_fallback.schema.chat import Message
from nearfar.server_fallback.text.chat_prompt import encode_rendered, mark_chat, read_chat, render_chat

VECTORS = Path(__file__).parents[2] / "conformance/image_prompts.json"
RECORDED: dict[str, Any] = json.loads(VECTORS.read_text())


def sizes_of(chat: Any) -> list[tuple[int, int]]:
    """The width and height of each picture of a chat, whose parts are texts and such pairs."""
    parts = [
        part for message in chat["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    return [(part[0], part[1]) for part in parts if isinstance(part, list)]


def with_parts(chat: Any, picture: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages, in which each pair is ``picture``."""
    return [
        message
        if isinstance(message["content"], str)
        else {
            **message,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else picture for part in message["content"]
            ],
        }
        for message in chat["messages"]
    ]


def texts_of(spec: ImageSpec, chat: Any) -> list[str]:
    return [str(image_layout(spec, *size)["text"]) for size in sizes_of(chat)]


def written(spec: ImageSpec, chat: Any) -> list[CutImage]:
    return [CutImage((), (), text, "") for text in texts_of(spec, chat)]


def theirs(spec: ImageSpec, source: str, chat: Any, folder: Path) -> tuple[str, list[int]]:
    """transformers' prompt and its tokens: its processors replace one mark after the other by a picture's text."""
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    messages = with_parts(chat, {"type": "image"})
    if "[0]['type']" in source:
        # This template reads lists only.
        text = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
        messages = [old if isinstance(old["content"], list) else new for old, new in zip(messages, text, strict=True)]
    rendered = tokenizer.apply_chat_template(
        messages, chat_template=source, tokenize=False, add_generation_prompt=True, bos_token=""
    )
    first, *rest = rendered.split(spec.prompt.mark)
    prompt = first + "".join(text + part for text, part in zip(texts_of(spec, chat), rest, strict=True))
    return prompt, tokenizer(prompt, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("family", RECORDED["templates"])
def test_pictures_stand_where_the_chat_template_writes_them(family: str, tmp_path: Path) -> None:
    folder = write_family(FAMILIES[family], tmp_path)
    spec, source = spec_of(folder), RECORDED["templates"][family]["source"]
    tokenizer = Tokenizer(TokenizerFiles.at(folder / "tokenizer.json", chat_template=source))
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for chat, recorded in zip(RECORDED["chats"], RECORDED["prompts"][family], strict=True):
        expected, ids = theirs(spec, source, chat, folder)
        read = read_chat(TypeAdapter(list[Message]).validate_python(with_parts(chat, image)), images=spec)
        marked = mark_chat(tokenizer, read)
        text = with_pictures(tokenizer, render_chat(tokenizer, marked), spec, written(spec, chat))
        assert text.replace(SENTINEL, "") == expected == spelled(spec, recorded)
        assert list(encode_rendered(tokenizer, marked, text).ids) == ids
        features = sum(sum(image_layout(spec, *size)["features"]) for size in sizes_of(chat))
        assert ids.count(spec.prompt.placeholder_id) == features


def short(spec: ImageSpec, prompt: str) -> str:
    """A prompt in which a number in braces stands for placeholders."""
    token, parts = spec.prompt.placeholder, []
    while token in prompt:
        before, prompt = prompt.split(token, 1)
        count = 1
        while prompt.startswith(token):
            count, prompt = count + 1, prompt.removeprefix(token)
        parts.append(f"{before}{{{count}}}")
    return "".join([*parts, prompt])


def spelled(spec: ImageSpec, shortened: str) -> str:
    first, *rest = shortened.split("{")
    counts = [part.split("}", 1) for part in rest]
    return first + "".join(spec.prompt.placeholder * int(count) + text for count, text in counts)


def record() -> None:
    from tempfile import TemporaryDirectory

    for family, template in RECORDED["templates"].items():
        with TemporaryDirectory() as made:
            folder = write_family(FAMILIES[family], Path(made))
            spec = spec_of(folder)
            prompts = [theirs(spec, template["source"], chat, folder)[0] for chat in RECORDED["chats"]]
        RECORDED.setdefault("prompts", {})[family] = [short(spec, prompt) for prompt in prompts]
    VECTORS.write_text(json.dumps(RECORDED, indent=1) + "\n")


if __name__ == "__main__":
    record()
