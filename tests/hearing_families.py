"""Tiny models that hear, as transformers writes them: the features of their towers and the logits of a prompt with a
picture between two sounds.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_families import randomize
from image_families import Family, marker_id, pattern, write_family
from vision_arguments import arguments_of, masks_of
from vision_families import FAMILIES as SEEING
from vision_families import standardize

from nearfar.compiler.runtime.audio.prepared_sound import PreparedSound, prepare_sound
from nearfar.compiler.runtime.images.patches import PreparedImage, prepare_image

Floats = npt.NDArray[np.float32]
AUDIO, PICTURE = marker_id("<|audio|>"), marker_id("<|image|>")
# Writes the marks of pictures and sounds, and the texts.
TEMPLATE = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}{{ '<|image|>' }}{% elif part.type == 'audio' %}"
    "{{ '<|audio|>' }}{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<end_of_utterance>' }}{% endfor %}"
)


@dataclass(frozen=True, slots=True)
class HearingFamily:
    """The family of VisionFamily that it hears beside, the section "audio_config", and the feature extractor's."""

    seeing: str
    audio: dict[str, Any]
    extractor: dict[str, Any]
    # The samples of the test's sounds.
    lengths: tuple[int, int]


FAMILIES = {
    # More features than a window has tokens, whose last frame is filled up; and a single frame.
    "gemma4_unified": HearingFamily(
        "gemma4_unified",
        {"audio_embed_dim": 32},
        {
            "feature_extractor_type": "Gemma4UnifiedAudioFeatureExtractor",
            "audio_samples_per_token": 32,
            "feature_size": 32,
            "sampling_rate": 16000,
            "padding_value": 0.0,
        },
        (32 * 11 + 5, 32),
    ),
    # Bounds of projections, and a table for each layer. More rows than a row sees, the last of which has one frame; and
    # a sound of two frames.
    "gemma4": HearingFamily(
        "gemma4_bounded",
        {
            "hidden_size": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "subsampling_conv_channels": [20, 6],
            "output_proj_dims": 44,
            "attention_chunk_size": 6,
            "attention_context_left": 7,
            "attention_logit_cap": 4.0,
        },
        {
            "feature_extractor_type": "Gemma4AudioFeatureExtractor",
            "feature_size": 20,
            "sampling_rate": 16000,
            "padding_value": 0.0,
            "frame_length": 320,
            "hop_length": 160,
            "fft_length": 512,
            "mel_floor": 0.001,
            "dither": 0.0,
        },
        (160 * 45 + 30, 161 + 160),
    ),
}


@dataclass(frozen=True, slots=True)
class Heard:
    """A prompt, and what transformers computes: the features of each sound, and the logits of all tokens. ``places``
    are the positions of the first placeholders of the first sound, the picture and the second sound.
    """

    sounds: tuple[PreparedSound, ...]
    picture: PreparedImage
    token_ids: list[int]
    places: tuple[int, int, int]
    features: tuple[Floats, ...]
    logits: Floats


def sound(samples: int, number: int = 0) -> Floats:
    """Two tones and noise."""
    time = np.arange(samples) / 16_000
    tones = 0.4 * np.sin(2 * np.pi * (440 + 110 * number) * time) + 0.2 * np.sin(2 * np.pi * 2000 * time + number)
    noise = np.random.default_rng(number).normal(0, 0.05, samples)
    return (tones + noise).astype(np.float32)


def wav(samples: Floats) -> bytes:
    """A file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes((samples * 32767).astype("<i2").tobytes())
    return file.getvalue()


def stored(samples: Floats) -> Floats:
    """The samples of a file."""
    return ((samples * 32767).astype("<i2") / 2.0**15).astype(np.float32)


def make_hearing(name: str, folder: Path, **text: Any) -> Heard:
    """Write a model of FAMILIES into a folder. ``text`` are other values of its text model's configuration."""
    import torch
    import transformers

    from nearfar.compiler.formats import load

    family = FAMILIES[name]
    seeing = SEEING[family.seeing]
    torch.manual_seed(len(name))
    values = {**seeing.config, "audio_config": family.audio}
    values["text_config"] = {**values["text_config"], **text}
    ids = {"image_token_id": PICTURE, "audio_token_id": AUDIO}
    config = getattr(transformers, f"{seeing.name}Config")(**values, **ids)
    for part in (config, config.text_config, config.vision_config, config.audio_config):
        part._attn_implementation = "eager"
    model = getattr(transformers, f"{seeing.name}ForConditionalGeneration")(config).float().eval()
    randomize(model)
    standardize(model)
    with torch.no_grad():
        # No answer ends at once.
        model.get_output_embeddings().weight[marker_id("<end_of_utterance>")] = 0
    write_family(Family({}, seeing.processor, {"feature_extractor": family.extractor}), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    model.save_pretrained(folder)
    loaded = load(str(folder))
    assert loaded.images is not None
    assert loaded.sounds is not None
    sounds = tuple(prepare_sound(loaded.sounds, sound(length, n)) for n, length in enumerate(family.lengths))
    picture = prepare_image(loaded.images, pattern(*seeing.sizes[0]))
    token_ids, places = list[int](), list[int]()
    parts = ((AUDIO, sounds[0].features), (PICTURE, sum(picture.features)), (AUDIO, sounds[1].features))
    for number, (token_id, count) in enumerate(parts):
        token_ids += [(31 * number + 7 * i) % 250 for i in range(5 + number)]
        places.append(len(token_ids))
        token_ids += [token_id] * count
    token_ids += [11, 12, 13]
    features, heard = own_features(model, family)
    inputs = {**arguments_of(model, loaded.images, [picture]), **heard}
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([token_ids]), **inputs, **masks_of(model, token_ids)).logits[0].numpy()
    first, second, third = places
    return Heard(sounds, picture, token_ids, (first, second, third), features, logits)


def own_features(
    model: Any, family: HearingFamily, samples: Sequence[Floats] | None = None
) -> tuple[tuple[Floats, ...], dict[str, Any]]:
    """The features of sounds, by default the test's, and the arguments of transformers' model for them, by its own
    processor.
    """
    import torch
    import transformers

    made_of_others = ("feature_extractor_type", "frame_length", "hop_length", "fft_length")
    options = {key: value for key, value in family.extractor.items() if key not in made_of_others}
    extractor = getattr(transformers, family.extractor["feature_extractor_type"])(**options)
    heard_samples = [sound(length, n) for n, length in enumerate(family.lengths)] if samples is None else samples
    made = extractor(list(heard_samples), return_tensors="pt")
    inputs = {
        "input_features": made["input_features"].float(),
        "input_features_mask": made["input_features_mask"].bool(),
    }
    with torch.no_grad():
        heard = model.model.get_audio_features(**inputs, return_dict=True)
    masks = heard.attention_mask
    rows = tuple(each[mask].numpy() for each, mask in zip(heard.pooler_output, masks, strict=True))
    return rows, inputs
