"""What a Hugging Face folder of a model of sound says of its processor and tokenizer, in Transformers.js' words."""

from __future__ import annotations

import json
from typing import Any

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.parakeet_files import PREEMPHASIS, SPECTRUM
from nearfar.compiler.ir.speech import FRAME, HOP, SAMPLE_RATE
from nearfar.compiler.runtime.errors import UnsupportedModel


def extractor_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The class of a family's processor, and the numbers of what it makes of sound."""
    padding = {"padding_side": "right", "padding_value": 0.0, "sampling_rate": SAMPLE_RATE}
    audio, conformer, speech = checkpoint.spec.audio, checkpoint.spec.conformer, checkpoint.speech
    if conformer is not None:
        return {
            **padding,
            "feature_extractor_type": "ParakeetFeatureExtractor",
            "feature_size": conformer.mel_bins,
            "hop_length": HOP,
            "n_fft": SPECTRUM,
            "preemphasis": PREEMPHASIS,
            "win_length": FRAME,
        }
    assert audio is not None
    assert speech is not None
    if not audio.mel_bins:
        return {
            **padding,
            "processor_class": "Wav2Vec2Processor",
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "feature_size": 1,
            "do_normalize": False,
        }
    return {
        **padding,
        "processor_class": "WhisperProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "chunk_length": speech.seconds,
        "feature_size": audio.mel_bins,
        "hop_length": HOP,
        "n_fft": FRAME,
        "n_samples": speech.seconds * SAMPLE_RATE,
        "nb_max_frames": 2 * audio.positions,
    }


def ctc_tokenizer(content: bytes, blank: int, where: str) -> bytes:
    """tokenizer.json with a decoder that writes equal neighbours once and no blanks. transformers' class for such
    models does that outside of the tokenizer, and Transformers.js has no such class. The blank is not special, because
    special tokens are left out first, and it separates equal letters.
    """
    data = json.loads(content)
    token = next((each for each in data.get("added_tokens", ()) if each["id"] == blank), None)
    if token is None:
        raise UnsupportedModel(
            f"{where}: tokenizer.json has no added token {blank}, the blank of the model, which --target onnx needs "
            "for its decoder; use --target webgpu, cpu or cuda"
        )
    token["special"] = False
    ctc = {"type": "CTC", "pad_token": token["content"], "word_delimiter_token": "|", "cleanup": False}
    others = [data["decoder"]] if data.get("decoder") else []
    data["decoder"] = {"type": "Sequence", "decoders": [ctc, *others]}
    return json.dumps(data, ensure_ascii=False).encode()
