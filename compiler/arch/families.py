"""Families that are known but not compiled, and the error message for a model_type that is not supported."""

from __future__ import annotations

from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, metadata, version

from ..nearest import nearest

# The supported model_type that computes most alike -> decoders of text.
DECODERS = {
    "llama": (
        "afmoe", "apertus", "arcee", "baichuan", "bitnet", "cwm", "deepseek", "deepseek_v2",
        "deepseek_v3", "diffllama", "doge", "dots1", "exaone", "falcon", "falcon3",
        "gemma", "gemma3n", "gemma3n_text", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj",
        "granitemoe", "helium", "internlm", "internlm2", "internlm3", "llama4", "llama4_text", "longcat_flash",
        "minicpm", "minicpm3", "minimax", "mpt", "nanochat", "nemotron", "olmo",
        "olmoe", "openelm", "opt", "persimmon", "seed_oss", "solar", "starcoder2",
        "vaultgemma", "xglm", "yi", "bloom", "codegen", "biogpt",
    ),
    "cohere2": ("cohere",),
    "ernie4_5": ("ernie4_5_moe",),
    "glm4": ("glm", "glm4_moe"),
    "hunyuan_v1_dense": ("hunyuan_v1_moe",),
    "mistral": ("mixtral",),
    "phi3": ("phi", "phi3small", "phi4", "phi4flash", "phimoe"),
    "qwen2": ("qwen", "qwen2_moe"),
    "qwen3": ("qwen3_moe", "qwen3_next"),
}  # fmt: skip
# Supported families whose published models have residual streams beyond float16's range.
LARGE_ACTIVATIONS = ("gemma2", "gemma3_text", "gemma4_text")
OTHERS = {
    "a model with recurrent states": (
        "bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "mamba", "mamba2",
        "nemotron_h", "recurrent_gemma", "rwkv", "xlstm", "zamba", "zamba2",
    ),
    "an encoder, which generates no text": (
        "albert", "big_bird", "camembert", "convbert", "deberta", "deberta-v2", "electra", "ernie", "esm", "eurobert",
        "funnel", "longformer", "mpnet", "roformer", "squeezebert", "xlm-roberta-xl",
    ),
    "an encoder with a decoder": (
        "bart", "blenderbot", "led", "longt5", "m2m_100", "marian", "mbart", "mt5", "pegasus", "prophetnet",
        "switch_transformers", "t5", "t5gemma", "umt5", "moonshine", "speech_to_text", "whisper",
    ),
    "a model of images or sound beside text": (
        "aria", "blip-2", "chameleon", "clip", "florence2", "fuyu", "glm4v", "got_ocr2", "granite_speech", "idefics",
        "idefics2", "instructblip", "janus", "kosmos-2", "mllama", "paligemma", "phi3_v", "phi4_multimodal", "phi4mm",
        "pixtral", "qwen2_5_omni", "qwen2_audio", "qwen3_omni_moe", "qwen3_vl_moe", "siglip", "siglip2", "ultravox",
        "vit",
    ),
}  # fmt: skip


def unsupported_message(name: str, supported: Collection[str]) -> str:
    """The reason why config.json's model_type is refused, the nearest family, and where to request support for it."""
    start = f"config.json: model_type {name!r} is not supported; supported: {', '.join(supported)}. "
    request = f"To request it, open an issue {_issue_tracker()}"
    for base, names in DECODERS.items():
        if name in names:
            return (
                f"{start}{_program()} knows this family but does not compile it yet; "
                f"the nearest family that it compiles is {base!r}. {request}"
            )
    for kind, names in OTHERS.items():
        if name in names:
            return f"{start}It is {kind}, and {_program()} does not compile such families yet. {request}"
    known = [*supported, *(each for names in (*DECODERS.values(), *OTHERS.values()) for each in names)]
    match = nearest(name, known)
    meant = "." if match is None else f"; did you mean {match!r}?"
    return (
        f"{start}No family of that name is known{meant} "
        f"Correct the file, or, if the family is newer than {_program()}, request it: open an issue {_issue_tracker()}"
    )


def _program() -> str:
    try:
        return f"nearfar {version('nearfar')}"
    except PackageNotFoundError:
        return "this version of nearfar"


def _issue_tracker() -> str:
    """Where to open an issue: the address in the package's metadata, if it has one."""
    try:
        urls = metadata("nearfar").get_all("Project-URL") or []
    except PackageNotFoundError:
        urls = []
    issues = next((url.partition(",")[2].strip() for url in urls if url.lower().startswith("issues,")), None)
    return f"at {issues}" if issues else "in the project's issue tracker"
