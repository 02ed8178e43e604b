"""Writes `model_types.json` from the installed transformers: python -m nearfar.compiler.arch.write_model_types

For each model_type that transformers knows and that does not compile: its kind (a key of `families.KINDS`), and the
nearest model_type that compiles. The kind follows from the tasks under which transformers lists the model, and from its
configuration and code; the nearest one from its name and from the model whose attention transformers
reuses for it (modular_*.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..formats.multimodal import MODEL_TYPES
from . import CTC, DECODERS, ENCODERS, LISTENING, SUPPORTED
from .families import FILE

IMAGES_AND_TEXT = {"image_text_to_text", "multimodal_lm"}
SPEECH = {
    "audio_classification", "audio_frame_classification", "audio_xvector", "ctc", "rnnt", "speech_seq_2_seq", "tdt",
    "text_to_spectrogram", "text_to_waveform",
}  # fmt: skip
TEXT_ENCODERS = {
    "masked_lm", "multiple_choice", "next_sentence_prediction", "question_answering", "sequence_classification",
    "text_encoding", "token_classification",
}  # fmt: skip
SERIES = {"time_series_classification", "time_series_prediction", "time_series_regression"}
IMAGE_TASKS = re.compile(r"image|segmentation|detection|video|depth|keypoint|backbone|mask_generation|pose|pointmap")
SPEECH_NAMES = re.compile(
    r"asr|audio|codec|dac|hubert|mimi|music|omniasr|speech|transcribe|tts|univnet|voice|voxtral|wav"
)
IMAGE_NAMES = re.compile(r"vision|image|visual|vit|vq|pixel|depth|sam\d?_|detr|dino|swin|clip|qformer|ocr|align|owl")
STATES = re.compile(
    r"\b(conv_L_cache|linear_num_key_heads|linear_conv_kernel_dim|lru_width|mamba_\w+|ssm_\w+|state_size)\b"
)
STATE_CLASSES = re.compile(
    r"class \w*(DeltaAttention|Lightning|Mamba|Mixer2?|Recurrent|Rwkv|SSM|ShortConv|xLSTM)\w*\(nn"
)
EXPERTS = re.compile(r"\b(num_experts|num_local_experts|n_routed_experts|moe_num_experts|moe_intermediate_size)\b")
# Families that only their repositories' own code computes, or another library: their kind, the nearest family that
# compiles, and their names.
ON_THE_HUB: tuple[tuple[str, str | None, str], ...] = (
    ("decoder", "llama", "Motif afm7 aquila baichuan baichuan_m1 btlm codeshell crystalcoder deci falcon3 gpt_refact "
        "internlm internlm2 jais lille-130m longllama mixformer-sequential nanbeige nemotron-nas openelm "
        "orion phi-msft plamo plamo3 RefinedWeb RefinedWebModel skywork solar telechat telechat2 telechat3 TeleFLM "
        "xverse yi yuan zhinao"),
    ("decoder", "glm4", "chatglm"),
    ("decoder", "mistral", "nvembed"),
    ("decoder", "olmo2", "hf_olmo"),
    ("decoder", "phi3", "phi3small phi4 phi4flash"),
    ("decoder", "qwen2", "qwen"),
    ("decoder", "stablelm", "stablelm_alpha stablelm_epoch"),
    ("states", None, "deltanet delta_net gated_deltanet gla hgrn2 hymba mamba_ssm plamo2 retnet rwkv5 rwkv6 "
        "rwkv7 stripedhyena"),
    ("experts", None, "minimax_m1 minimax_text_01"),
    ("experts", "llama", "Klear arctic bailing_moe bailing_moe_v2 bailing_moe_v3 deepseek grok-1 grok1 kimi_k2 "
        "phixtral skywork_moe step3_text youtu_llm"),
    ("experts", "hunyuan_v1_dense", "hunyuan"),
    ("encoder", "bert", "NewModel jina_bert jina_bert_v2 mosaic_bert neobert"),
    ("encoder", "nomic_bert", "nomic_bert_moe"),
    ("encoder", "xlm-roberta", "xlm-roberta-flash xlm_roberta_flash"),
    ("vision-language", "idefics3", "h2ovl_chat"),
    ("vision-language", "internvl", "Eagle2 NVLM_D Llama_Nemotron_Nano_VL internvl_chat skywork_chat"),
    ("vision-language", "llava", "KeyeVL bunny-llama bunny-phi bunny-qwen2 cogvlm cogvlm2 deepseek_vl_v2 glm-4v "
        "hcxvisionmodel internlmxcomposer internlmxcomposer2 keye kimi_vl llava_llama llava_mistral llava_phi minicpmo "
        "minicpmv molmo moondream1 moondream2 moondream3 mplug_owl2 mplug_owl3 multi_modality ovis phi3_v phi4mm "
        "step3_vl vila"),
    ("vision-language", "llava_onevision", "llava_qwen"),
    ("speech", "voxtral", "ultravox"),
    ("speech", None, "kimi_audio parler_tts step_audio"),
    ("image", None, "SegformerForSemanticSegmentation birefnet jina_clip"),
    ("other", None, "Dream llada sdar"),
)  # fmt: skip


def main() -> None:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(all_types().items()))
    (Path(__file__).parent / FILE).write_text("{\n" + lines + "\n}\n")


def all_types() -> dict[str, tuple[str, str | None]]:
    on_the_hub = {name: (kind, near) for kind, near, names in ON_THE_HUB for name in names.split()}
    return on_the_hub | read_types()


def read_types() -> dict[str, tuple[str, str | None]]:
    from transformers.models.auto import configuration_auto, modeling_auto

    mappings: dict[str, Mapping[str, Any]] = {
        name.removesuffix("_MAPPING_NAMES").removeprefix("MODEL_FOR_").lower(): getattr(modeling_auto, name)
        for name in dir(modeling_auto)
        if name.endswith("_MAPPING_NAMES")
    }
    models = Path(modeling_auto.__file__).parents[1]
    folders = configuration_auto.SPECIAL_MODEL_TYPE_TO_MODULE_NAME
    types = {}
    for name in configuration_auto.CONFIG_MAPPING_NAMES:
        if name not in (*SUPPORTED, *ENCODERS, *LISTENING, *CTC, *MODEL_TYPES):
            folder = models / folders.get(name, name.replace("-", "_"))
            kind = kind_of(name, {task for task, names in mappings.items() if name in names}, folder)
            types[name] = kind, nearest_of(name, kind, folder)
    return types


def kind_of(name: str, tasks: set[str], folder: Path) -> str:
    config = source(folder, "configuration")
    if tasks & (IMAGES_AND_TEXT | SPEECH) or "flamingo" in name:
        return "speech" if tasks & SPEECH or SPEECH_NAMES.search(name) or "flamingo" in name else "vision-language"
    if "causal_lm" in tasks and "masked_lm" not in tasks:
        if "seq_to_seq_causal_lm" in tasks:
            return "encoder-decoder"
        if STATES.search(config) or STATE_CLASSES.search(source(folder, "modeling")):
            return "states"
        return "experts" if EXPERTS.search(config) else "decoder"
    if "seq_to_seq_causal_lm" in tasks:
        return "encoder-decoder"
    if any(map(IMAGE_TASKS.search, tasks)):
        return "image"
    if tasks & SERIES or "time_series" in name or name in ("autoformer", "informer"):
        return "series"
    if SPEECH_NAMES.search(name):
        return "speech"
    if tasks & TEXT_ENCODERS:
        return "encoder"
    if IMAGE_NAMES.search(name):
        return "image"
    return "part" if folder.name != name.replace("-", "_") else "other"


def nearest_of(name: str, kind: str, folder: Path) -> str | None:
    """The model that compiles whose name begins alike, or whose attention the model reuses; if there is none, the
    plainest of its kind.
    """
    choices: Mapping[str, tuple[tuple[str, ...], str | None]] = {
        "decoder": (DECODERS, "llama"), "experts": (DECODERS, "llama"), "states": (SUPPORTED, None),
        "encoder": (ENCODERS, "bert"), "vision-language": (MODEL_TYPES, "llava"), "speech": (("voxtral",), None),
    }  # fmt: skip
    names, default = choices.get(kind, ((), None))
    alike = [each for each in names if name.startswith(root_of(each))]
    if alike:
        return max(alike, key=lambda each: (common_length(each, name), -len(each)))
    reused = re.search(r"^class \w+Attention\((\w+)Attention\)", source(folder, "modular"), re.MULTILINE)
    by_class = {each.replace("_", "").removesuffix("text"): each for each in names}
    return default if reused is None else by_class.get(reused[1].lower(), default)


def root_of(name: str) -> str:
    """A name up to its first number or part: "qwen" of "qwen3"."""
    found = re.match(r"[a-z]+", name)
    assert found is not None
    return found[0]


def common_length(left: str, right: str) -> int:
    """The number of characters at the start of both names."""
    return next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), len(left))


def source(folder: Path, kind: str) -> str:
    return "".join(path.read_text() for path in sorted(folder.glob(f"{kind}_*.py")))


if __name__ == "__main__":
    main()
