"""Files and recordings in messages: `web/test/api/attachments.test.ts` has the same cases."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from nearfar.compiler.runtime.errors import RequestError
from nearfar.compiler.runtime.images.decode import decode_image
from nearfar.compiler.shared.script import SharedScript
from nearfar.server_fallback.images.options import ImageOptions
from nearfar.server_fallback.schema.chat import ChatCompletionRequest
from nearfar.server_fallback.text.chat_prompt import read_chat

CASES = json.loads((Path(__file__).parents[2] / "conformance" / "attachments.json").read_text())


def contents(*parts: dict[str, Any]) -> Any:
    request = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    (message,) = read_chat(ChatCompletionRequest.model_validate(request).messages).messages
    return message["content"]


def file_part(file: dict[str, Any]) -> dict[str, Any]:
    """``repeat`` stands for a long content."""
    count = file.get("repeat")
    given = {key: value for key, value in file.items() if key != "repeat"}
    if count is not None:
        given["file_data"] = base64.b64encode(b"a" * count).decode()
    return {"type": "file", "file": given}


@pytest.mark.parametrize("case", CASES["files"], ids=lambda case: case["name"])
def test_files_of_text_take_their_places_and_others_are_refused_by_name(case: dict[str, Any]) -> None:
    parts = [{"type": "text", "text": "see "}, file_part(case["file"])]
    if "text" in case:
        assert contents(*parts) == "see " + case["text"]
        return
    with pytest.raises(RequestError) as refused:
        contents(*parts)
    assert refused.value.message.startswith("messages[0].content[1].file ")
    assert case["error"] in refused.value.message
    assert refused.value.details["param"] == "messages[0].content[1].file"


def test_a_request_has_few_files() -> None:
    part = file_part({"filename": "a.txt", "file_data": "YQ=="})
    assert contents(*[part] * 16).count("[File: a.txt]") == 16
    with pytest.raises(RequestError, match="The messages have 17 files; send at most 16"):
        contents(*[part] * 17)


def test_a_recording_without_a_transcriber_says_what_to_do() -> None:
    with pytest.raises(RequestError, match=r"messages\[0\].content\[0\] is a recording.*--transcriber MODEL"):
        contents({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}})


def test_both_sides_have_one_bound_for_pictures() -> None:
    bounds = SharedScript.of_thread().ask("attachmentBounds")
    assert ImageOptions().max_images == bounds["pictures"]
    assert ImageOptions().max_pixels is None
    # A GIF that says how large it is; it is not decoded.
    side = 50_001
    gif = b"GIF89a" + side.to_bytes(2, "little") + (1000).to_bytes(2, "little") + b"\x00\x00\x00,"
    gif += bytes(4) + side.to_bytes(2, "little") + (1000).to_bytes(2, "little") + b"\x00\x02\x02\x44\x01\x00;"
    with pytest.raises(RequestError, match=f"at most {bounds['picture_pixels']} are allowed"):
        decode_image(gif)
