"""The other files of a Hugging Face folder: config.json, generation_config.json and the tokenizer's, as in the
checkpoint.

Files that loaders need but the checkpoint lacks are generated. Transformers.js finds its options in config.json.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearfar.compiler.formats import Checkpoint
from nearfar.compiler.formats.images import FILTERS, PREPROCESSOR_FILE, PROCESSOR_FILE
from nearfar.compiler.formats.sentence_transformers import LENGTH_FILES, MODULES_FILE, PROMPTS_FILE, read_modules
from nearfar.compiler.ir.images import AreaBounds, EvenTiles, FixedSize, LargestArea

from .genai_config import LAYER_TYPES
from .sound_files import ctc_tokenizer, extractor_of

# Families that Transformers.js does not know, and those that it knows with the same keys, values and states. It reads
# only their sizes in config.json, under the same keys.
UNKNOWN_TO_TRANSFORMERS_JS = {
    "exaone4": "llama", "glm4": "llama", "granitemoe": "llama", "lfm3": "lfm2", "moonshine_streaming": "moonshine",
    "olmoe": "llama",
}  # fmt: skip
# Its words for what the layers of a model with Mamba-2 mix with; in other models, they are those of GenAI.
MAMBA_LAYER_TYPES = {"attention": "attention", "mamba2": "mamba"}
TEMPLATE_FILE = "chat_template.jinja"
# Copied if they exist; they contain nothing beyond the tokenizer's files.
OPTIONAL_FILES = ("added_tokens.json", "special_tokens_map.json", "vocab.json", "merges.txt", TEMPLATE_FILE)


# The classes of Transformers.js that prepare pictures; checkpoints name others, or none.
PROCESSORS = {
    "gemma3": ("Gemma3Processor", "Gemma3ImageProcessor"),
    "gemma4": ("Gemma4Processor", "Gemma4ImageProcessor"),
    "gemma4_unified": ("Gemma4Processor", "Gemma4ImageProcessor"),
    "idefics3": ("Idefics3Processor", "Idefics3ImageProcessor"),
    "lfm2_vl": ("Lfm2VlProcessor", "Lfm2VlImageProcessor"),
    "qwen3_5": ("Qwen3VLProcessor", "Qwen2VLImageProcessor"),
    "qwen3_vl": ("Qwen3VLProcessor", "Qwen2VLImageProcessor"),
    "smolvlm": ("SmolVLMProcessor", "SmolVLMImageProcessor"),
}


def write_huggingface_files(folder: Path, checkpoint: Checkpoint, device: str, data_files: Mapping[str, int]) -> None:
    """``data_files``: the number of files of external data of each graph."""
    sees = checkpoint.spec.vision is not None
    config = read_json(checkpoint.path / "config.json") if sees else dict(checkpoint.config)
    if config.get("tie_word_embeddings"):
        # The weights may contradict it.
        config["tie_word_embeddings"] = checkpoint.spec.tie_word_embeddings
    spec = checkpoint.spec
    if spec.model_type in UNKNOWN_TO_TRANSFORMERS_JS:
        config |= {"model_type": UNKNOWN_TO_TRANSFORMERS_JS[spec.model_type], "head_dim": spec.head_dim}
    if spec.model_type == "moonshine_streaming":
        # Under Moonshine's key.
        config["decoder_num_hidden_layers"] = spec.num_layers
    words = MAMBA_LAYER_TYPES if "mamba2" in spec.mixers else LAYER_TYPES
    if spec.mixers and words.keys() >= set(spec.mixers):
        text = config
        if sees:
            text = config["text_config"] = dict(config["text_config"])
        text["layer_types"] = [words[mixer] for mixer in spec.mixers]
    # "fp32" is Transformers.js' name for a file without a suffix, whatever its dtype.
    counts = dict(data_files) if len(data_files) > 1 else next(iter(data_files.values()))
    config["transformers.js_config"] = {"dtype": "fp32", "use_external_data_format": counts}
    # Without this entry, it uses the CPU: the CPU provider in Node, wasm in browsers.
    if device != "cpu":
        config["transformers.js_config"]["device"] = device
    if sees:
        name_sizes(config, checkpoint)
    write_json(folder / "config.json", config)
    if checkpoint.task is None or checkpoint.speech is not None:
        write_json(folder / "generation_config.json", generation_config(checkpoint))
    elif checkpoint.ctc is None:
        copy_modules(folder, checkpoint.path)
    if sees:
        write_processor(folder, checkpoint)
    if checkpoint.speech is not None or checkpoint.ctc is not None:
        write_feature_extractor(folder, checkpoint)
    write_json(folder / "tokenizer_config.json", tokenizer_config(checkpoint))
    tokenizer = checkpoint.tokenizer.content
    if checkpoint.ctc is not None:
        tokenizer = ctc_tokenizer(tokenizer, checkpoint.ctc.blank, str(checkpoint.path))
    (folder / "tokenizer.json").write_bytes(tokenizer)
    # Beside a tokenizer that was changed, they would contradict it.
    for name in OPTIONAL_FILES if checkpoint.ctc is None else ():
        if (checkpoint.path / name).is_file():
            shutil.copyfile(checkpoint.path / name, folder / name)


def name_sizes(config: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Add what Transformers.js reads, and a config.json may leave out because it is the default."""
    assert checkpoint.images is not None
    config.setdefault("image_token_id", checkpoint.images.prompt.placeholder_id)
    if opens_ears(checkpoint):
        # Transformers.js has one class for all of Gemma 4.
        config["model_type"] = "gemma4"
    config["text_config"] = {"num_hidden_layers": checkpoint.spec.num_layers, **config["text_config"]}


def opens_ears(checkpoint: Checkpoint) -> bool:
    """Whether Transformers.js opens a graph that reads sound, whatever config.json says."""
    vision = checkpoint.spec.vision
    return vision is not None and PROCESSORS[vision.model_type][0] == "Gemma4Processor"


def write_processor(folder: Path, checkpoint: Checkpoint) -> None:
    """The files that say how pictures are prepared. transformers 5 writes only the second one, with a section for what
    the first one has; Transformers.js reads classes and sizes from both.
    """
    vision, images = checkpoint.spec.vision, checkpoint.images
    assert vision is not None
    assert images is not None
    processor = read_json(checkpoint.path / PROCESSOR_FILE)
    section = processor.get("image_processor")
    own = section if isinstance(section, dict) else read_json(checkpoint.path / PREPROCESSOR_FILE)
    known, kind = PROCESSORS[vision.model_type]
    classes = {"processor_class": known, "image_processor_type": kind}
    # Transformers.js has other defaults than transformers.
    resample = next(number for number, name in FILTERS.items() if name == images.filter)
    defaults: dict[str, Any] = {"do_normalize": images.mean is not None, "resample": resample}
    if images.mean is not None:
        defaults |= {"image_mean": images.mean, "image_std": images.std}
    bounds: dict[str, Any] = {}
    if images.positions.rule == "corners" and isinstance(images.size, AreaBounds):
        defaults |= {"patch_size": images.patch, "merge_size": images.block, "temporal_patch_size": 2}
        # A tower reads smaller pictures than the checkpoint's processor makes.
        bounds = {"min_pixels": images.size.least, "max_pixels": images.size.most}
        bounds |= {"size": {"shortest_edge": images.size.least, "longest_edge": images.size.most}}
    if isinstance(images.size, LargestArea):
        # Patches that are whole blocks are those of pictures without blocks.
        side = images.patch * images.block
        bounds = {"patch_size": images.patch, "pooling_kernel_size": images.block}
        bounds["max_soft_tokens"] = images.size.most // side**2
    preprocessor = {**defaults, **own, **bounds, **classes}
    write_json(folder / PREPROCESSOR_FILE, preprocessor)
    features = {}
    if isinstance(images.tiles, EvenTiles):
        features["image_seq_len"] = (images.tiles.side // images.patch // images.block) ** 2
    if isinstance(images.size, FixedSize):
        features["image_seq_length"] = vision.tile_patches // images.block**2
    if opens_ears(checkpoint):
        processor = {**processor, "image_processor": preprocessor}
        # The folder reads no sound.
        processor.pop("feature_extractor", None)
    write_json(folder / PROCESSOR_FILE, {**features, **processor, "processor_class": known})
    template = checkpoint.tokenizer.chat_template
    if template is not None and not (checkpoint.path / TEMPLATE_FILE).is_file():
        (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")


def write_feature_extractor(folder: Path, checkpoint: Checkpoint) -> None:
    """The file that says how sound becomes what the encoder reads, which the checkpoint may leave out."""
    section = read_json(checkpoint.path / PROCESSOR_FILE).get("feature_extractor")
    own = section if isinstance(section, dict) else read_json(checkpoint.path / PREPROCESSOR_FILE)
    write_json(folder / PREPROCESSOR_FILE, {**extractor_of(checkpoint), **own})


def copy_modules(folder: Path, source: Path) -> None:
    """Copy the files of sentence-transformers, with which it loads the folder too."""
    for path in (source / MODULES_FILE, source / PROMPTS_FILE, *(source / name for name in LENGTH_FILES)):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    for module in read_modules(source):
        name = str(module.get("path") or "")
        # A module without options has no folder.
        if name and (source / name).is_dir():
            shutil.copytree(source / name, folder / name)


def generation_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's, or the tokens at which a text begins and ends."""
    found = read_json(checkpoint.path / "generation_config.json")
    spec = checkpoint.spec
    known = {"bos_token_id": spec.bos_token_id, "eos_token_id": list(spec.eos_token_ids) or None}
    return found or {key: value for key, value in known.items() if value is not None}


def tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's, with the chat template and the special tokens wherever the checkpoint stores them, and a
    class.
    """
    files = checkpoint.tokenizer
    names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
    known = {name: getattr(files, name) for name in names if getattr(files, name) is not None}
    found = read_json(checkpoint.path / "tokenizer_config.json")
    if checkpoint.images is not None:
        # Processors of Transformers.js read them there.
        prompt = checkpoint.images.prompt
        marks = {"boi_token": prompt.start.strip(), "image_token": prompt.placeholder, "eoi_token": prompt.end.strip()}
        known |= {name: text for name, text in marks.items() if text}
    found = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **found,
        **{name: value for name, value in known.items() if name not in found},
    }
    if checkpoint.ctc is not None:
        # The folder's decoder does what the class of the checkpoint does. The blank must not become special again.
        found |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        found.pop("pad_token", None)
        found.pop("added_tokens_decoder", None)
    return found


def read_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
