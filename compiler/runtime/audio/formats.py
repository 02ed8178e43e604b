"""Transcripts as texts: plain, JSON as OpenAI's API answers, and files of subtitles."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Literal

from ...shared.script import SharedScript
from .transcribe import Segment, Transcript

Format = Literal["text", "json", "verbose_json", "srt", "vtt"]


def write_transcript(transcript: Transcript, form: Format, *, stamped: bool = False) -> str:
    """``stamped``: a plain text has a line for each segment, after its times."""
    if form == "text":
        if not stamped:
            return transcript.text + "\n"
        return "".join(f"[{each.start:.2f} - {each.end:.2f}] {each.text.strip()}\n" for each in transcript.segments)
    if form == "json":
        return json.dumps({"text": transcript.text}, ensure_ascii=False) + "\n"
    if form == "verbose_json":
        return json.dumps(verbose_json(transcript, words=True), ensure_ascii=False) + "\n"
    captions = [{"start": each.start, "end": each.end, "text": each.text} for each in transcript.segments]
    text: str = SharedScript.of_thread().ask("asSrt" if form == "srt" else "asVtt", captions)
    return text


def verbose_json(transcript: Transcript, *, words: bool = False) -> dict[str, Any]:
    """As OpenAI's API answers with response_format "verbose_json". ``words``: with those that the model knows."""
    said = [asdict(word) for segment in transcript.segments for word in segment.words] if words else []
    return {
        "task": transcript.task,
        "language": transcript.language,
        "duration": transcript.duration,
        "text": transcript.text,
        **({"words": said} if said else {}),
        "segments": [_segment(index, each) for index, each in enumerate(transcript.segments)],
    }


def _segment(index: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": index,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }
