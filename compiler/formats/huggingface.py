"""Opens a folder that transformers wrote: config.json, model.safetensors (one file or shards) and tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ..arch import CtcArchitecture, Encoder, by_model_type, ctc_of, encoder_of
from ..bundle.manifest import MANIFEST_FILE
from ..ir.spec import ModelSpec
from ..ir.speech import SpeechSpec
from ..ir.tasks import EmbeddingSpec
from ..runtime.errors import CheckpointError, UnsupportedModel
from ..runtime.text.tokenizer import Tokenizer
from . import (
    auto_round_quant,
    awq_quant,
    bitsandbytes_quant,
    compressed_tensors_quant,
    compressed_tensors_scheme,
    fp4_blocks,
    fp8_quant,
    gemma_quant,
    gptq_quant,
    mlx_quant,
    modelopt_quant,
    moonshine_files,
    torchao_quant,
    whisper_files,
)
from .checkpoint import ActivationScales, Checkpoint, Tensor
from .classifier import read_classifier, with_transitions
from .config import ConfigReader, require_skippable
from .decision_head import head_tensors, read_decision_head, with_decisions, with_prompts
from .decoder_tensors import decoder_tensors
from .distance_tensors import with_distance_tensors
from .encoder_tensors import dense_tensors, encoder_tensors, encoder_tokenizer
from .expert_stacks import with_matrices
from .json_file import read_json_object
from .logit_score import as_reranker, read_logit_score, template_of_pairs
from .mlx_names import transformers_tensors
from .multimodal import text_modules, text_tensors, text_values
from .parakeet_files import parakeet_tensors, read_ctc
from .pytorch_file import PytorchTensor, has_pytorch_files, read_pytorch
from .safetensors_file import SafetensorsTensor, read_safetensors
from .sentence_transformers import (
    MODULES_FILE,
    SentenceTransformer,
    read_length,
    read_matryoshka,
    read_sentence_transformer,
    with_activation,
)
from .spec_against_tensors import choose_draft_heads, choose_head, require_sizes
from .task_adapters import with_adapters
from .tokenizer_files import read_tokenizer_files
from .towers import read_tower

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
Quantization: TypeAlias = (
    awq_quant.AwqQuantization
    | bitsandbytes_quant.BitsAndBytesQuantization
    | compressed_tensors_quant.CompressedTensors
    | fp4_blocks.Mxfp4Quantization
    | fp8_quant.Fp8Quantization
    | gemma_quant.GemmaQuantization
    | gptq_quant.GptqQuantization
    | mlx_quant.MlxQuantization
    | modelopt_quant.ModelOptQuantization
    | torchao_quant.TorchAoQuantization
)
# The readers of a section "quantization_config", by its method.
METHODS: Mapping[str, Callable[[ConfigReader], Quantization]] = {
    **dict.fromkeys(auto_round_quant.METHODS, auto_round_quant.read_quantization),
    awq_quant.METHOD: awq_quant.read_quantization,
    bitsandbytes_quant.METHOD: bitsandbytes_quant.read_quantization,
    compressed_tensors_scheme.METHOD: compressed_tensors_quant.read_quantization,
    fp4_blocks.METHOD: fp4_blocks.read_quantization,
    **dict.fromkeys(fp8_quant.METHODS, fp8_quant.read_quantization),
    gemma_quant.METHOD: gemma_quant.read_quantization,
    gptq_quant.METHOD: gptq_quant.read_quantization,
    **dict.fromkeys(modelopt_quant.METHODS, modelopt_quant.read_quantization),
    torchao_quant.METHOD: torchao_quant.read_quantization,
}

# The readers of how a model of sound transcribes.
SPEECH: Mapping[str, Callable[[Path, ModelSpec], SpeechSpec]] = {
    "moonshine": moonshine_files.read_speech,
    "moonshine_streaming": moonshine_files.read_speech,
    "whisper": whisper_files.read_speech,
}

QUANTIZATION_KEYS = ("quantization_config", mlx_quant.SECTION)

# A name that contains a folder could lead anywhere on this machine.
_SHARD_NAME = re.compile(r"\w[\w.-]*\.safetensors")


def open_checkpoint(path: Path, ignore_keys: Collection[str] = (), *, text_only: bool = False) -> Checkpoint:
    """The checkpoint in a folder. Reads and checks everything except the tensors' values. ``text_only``: without the
    towers of a model that sees pictures or hears.

    Raises CheckpointError for missing, corrupt or contradictory files, UnsupportedModel for models that we do not
    compile, RequestError for a key of config.json that cannot be ignored.
    """
    spec, quantization = _read_spec(path, ignore_keys)
    decision = read_decision_head(path, read_json_object(path / "config.json"))
    encoder = encoder_of(spec.model_type)
    if decision is not None:
        spec = with_decisions(path, spec, decision)
    if encoder is not None:
        return _open_encoder(path, spec, encoder)
    if spec.conformer is not None:
        return _open_ctc(path, spec)
    vectors = None if decision is not None else read_sentence_transformer(path, spec.row_size)
    embedding = None if vectors is None else vectors.embedding
    config = with_activation(path, _text_config(path / "config.json", ignore_keys))
    classifier = read_classifier(config, str(path / "config.json"), "last_token") if vectors is None else None
    classifier = with_transitions(classifier, path) if decision is None else decision.classifier()
    speech = None if spec.audio is None else SPEECH[spec.model_type](path, spec)
    makes_text = embedding is None and classifier is None
    if makes_text and not spec.causal:
        raise UnsupportedModel(
            f"{path}: its tokens see those after them ('is_causal' or 'use_bidirectional_attention'), so it generates "
            f"no text, and {MODULES_FILE}, which says how it makes vectors, is missing; download that too"
        )
    stored = read_tensors(path)
    notes = _notes_on_code(path)
    tensors: Mapping[str, Tensor] = stored
    activation_scales: Mapping[str, ActivationScales] = {}
    if quantization is not None:
        # The patterns of this method match the names on disk.
        read = quantization.read_tensors(_safetensors_only(path, stored), tied=spec.tie_word_embeddings)
        tensors, activation_scales = read.tensors, read.activation_scales
        notes += read.notes
    tensors = decoder_tensors(tensors, spec)
    tower = read_tower(path, tensors, notes, ignore_keys) if makes_text and not text_only else None
    if tower is not None:
        spec, tensors = tower.joined(spec), tower.others
    tensors, left_out = text_tensors(tensors, sees=tower is not None)
    activation_scales = text_modules(activation_scales)
    notes += left_out
    if not makes_text and "embed_tokens.weight" in tensors:
        # A model that is saved without a head has no "model." prefix.
        tensors = {f"model.{name}": tensor for name, tensor in tensors.items()}
        activation_scales = {f"model.{module}": scales for module, scales in activation_scales.items()}
    tensors = with_matrices(transformers_tensors(tensors, spec, str(path)), spec.model_type)
    if decision is not None:
        tensors = head_tensors(path, tensors, decision, spec.row_size)
    require_sizes(path / "config.json", spec, tensors)
    spec, tensors = choose_draft_heads(path, spec, tensors, notes, makes_text=makes_text)
    if makes_text and spec.tie_word_embeddings:
        spec, tensors = choose_head(path, spec, tensors, notes)
    tokenizer = read_tokenizer_files(path, spec.vocab_size)
    max_tokens = read_length(path)[0]
    if vectors is not None:
        tokenizer = encoder_tokenizer(tokenizer, lowercases=vectors.lowercases)
        tensors = {**tensors, **dense_tensors(path, vectors.dense_folders)}
    if decision is not None:
        tokenizer = with_prompts(path, decision, tokenizer)
    images, sounds = None, None
    if tower is not None:
        images, vision, tokenizer = tower.read_images(tokenizer, notes)
        sounds, hearing = tower.read_sounds(Tokenizer(tokenizer))
        tensors = tower.with_media(tensors, [images] if sounds is None else [images, sounds], hearing)
        spec = replace(spec, vision=vision, hearing=hearing)
    if classifier is not None and classifier.relevance is not None:
        classifier = replace(classifier, template=template_of_pairs(path, Tokenizer(tokenizer)))
    checkpoint = Checkpoint(
        path,
        spec,
        tensors,
        tokenizer,
        config,
        embedding,
        tuple(notes),
        activation_scales,
        classifier=classifier,
        max_tokens=max_tokens,
        speech=speech,
        images=images,
        sounds=sounds,
        towers={} if tower is None else tower.stored,
    )
    score = read_logit_score(path)
    return checkpoint if score is None else as_reranker(checkpoint, score)


def _open_encoder(path: Path, spec: ModelSpec, encoder: Encoder) -> Checkpoint:
    """The checkpoint of an encoder: an embedding model or a classifier."""
    config_path = path / "config.json"
    config = with_activation(path, read_json_object(config_path))
    notes = _notes_on_code(path)
    vectors = read_sentence_transformer(path, spec.hidden_size)
    classifier = read_classifier(config, str(config_path)) if vectors is None else None
    classifier = with_transitions(classifier, path)
    if vectors is None and classifier is None:
        vectors = SentenceTransformer(EmbeddingSpec("mean", normalize=False, size=spec.hidden_size))
        notes.append(
            f"{path}: has no {MODULES_FILE}, and config.json names no classifier; its vectors are the means of the "
            "last layer's rows, as sentence-transformers makes them of such a model"
        )
    embedding = None if vectors is None else vectors.embedding
    if embedding is not None:
        embedding = replace(embedding, dimensions=read_matryoshka(config, str(config_path), embedding.size))
    tensors: Mapping[str, Tensor] = encoder_tensors(read_tensors(path), encoder.PREFIX)
    tensors = with_adapters(tensors, config, str(config_path))
    require_sizes(config_path, spec, tensors)
    tensors = with_distance_tensors(tensors, spec, config, str(config_path))
    folders = () if vectors is None else vectors.dense_folders
    lowercases = vectors is not None and vectors.lowercases
    return Checkpoint(
        path,
        spec,
        {**tensors, **dense_tensors(path, folders)},
        encoder_tokenizer(read_tokenizer_files(path, spec.vocab_size), lowercases=lowercases),
        config,
        embedding,
        tuple(notes),
        classifier=classifier,
        max_tokens=read_length(path)[0],
    )


def _open_ctc(path: Path, spec: ModelSpec) -> Checkpoint:
    """The checkpoint of an encoder of sound whose rows name tokens."""
    config_path = path / "config.json"
    config = read_json_object(config_path)
    ctc, stored = read_ctc(path, spec, config), read_tensors(path)
    require_sizes(config_path, spec, stored)
    tensors = parakeet_tensors(stored, spec, config, str(config_path))
    tokenizer, notes = read_tokenizer_files(path, spec.vocab_size), tuple(_notes_on_code(path))
    return Checkpoint(path, spec, tensors, tokenizer, config, notes=notes, ctc=ctc)


def _notes_on_code(path: Path) -> list[str]:
    """A note if the repository has its own code for a model that transformers computes without it."""
    config = read_json_object(path / "config.json")
    code = config.get("auto_map")
    if not isinstance(code, dict) or not any(name.startswith("AutoModel") for name in code):
        return []
    return [
        f"{path}: the repository's own code ('auto_map') is not used; the model computes what transformers computes "
        f"for model_type {config['model_type']!r} without it"
    ]


def _read_spec(path: Path, ignore_keys: Collection[str]) -> tuple[ModelSpec, Quantization | None]:
    """The spec, and the quantization of the weights; None if they are floats."""
    config_path = path / "config.json"
    if not config_path.is_file():
        if (path / "adapter_config.json").is_file():
            raise _bad(path, "contains a LoRA adapter, not a model; merge it into its base model and save that")
        _refuse_a_bundle(path)
        raise _bad(path, "has no config.json; pass a folder that transformers' save_pretrained wrote")
    spec, quantization = _read_config(config_path, ignore_keys)
    generation_path = path / "generation_config.json"
    if not generation_path.is_file():
        return spec, quantization
    generation = ConfigReader(read_json_object(generation_path), str(generation_path))
    generation_ids = generation.token_ids("eos_token_id")
    if any(token_id >= spec.vocab_size for token_id in generation_ids):
        raise generation.contradiction(
            "eos_token_id",
            f"'eos_token_id' is {list(generation_ids)}, outside of the vocabulary of {spec.vocab_size} (config.json)",
        )
    # In chat models, config.json often names only the end of a text; generation_config.json also names the end of a
    # turn.
    return replace(spec, eos_token_ids=tuple(dict.fromkeys((*spec.eos_token_ids, *generation_ids)))), quantization


def read_spec(path: Path, ignore_keys: Collection[str] = ()) -> ModelSpec:
    """The spec of a config.json. Raises CheckpointError, UnsupportedModel and RequestError."""
    return _read_config(path, ignore_keys)[0]


def _read_config(path: Path, ignore_keys: Collection[str]) -> tuple[ModelSpec, Quantization | None]:
    values = dict(read_json_object(path))
    require_skippable(ignore_keys, values, str(path))
    quantization: Quantization | None = None
    section = values.get("quantization_config")
    of_mlx = values.get(mlx_quant.SECTION)
    # An architecture does not depend on the storage of its weights. It refuses all other methods.
    if isinstance(section, dict) and section.get("quant_method") in METHODS:
        del values["quantization_config"]
        quantization = METHODS[section["quant_method"]](ConfigReader(section, f"{path}: quantization_config"))
    elif isinstance(of_mlx, dict):
        del values[mlx_quant.SECTION]
        quantization = mlx_quant.read_quantization(of_mlx, str(path))
        if section == of_mlx:
            # mlx-lm also writes the section under this key.
            del values["quantization_config"]
    text = text_values(values, str(path), ignore_keys)
    config = ConfigReader(text or values, _where(path, values), ignore_keys)
    name = config.text("model_type")
    encoder: Encoder | CtcArchitecture | None = encoder_of(name) or ctc_of(name)
    if encoder is not None and (quantization is not None or section is not None):
        raise _bad(path, f"has quantized weights, which are not supported for {name}; pass the float checkpoint")
    return (encoder or by_model_type(name)).read_config(config), quantization


def _where(path: Path, values: Mapping[str, Any]) -> str:
    return f"{path}: text_config" if isinstance(values.get("text_config"), dict) else str(path)


def _text_config(path: Path, ignore_keys: Collection[str]) -> dict[str, Any]:
    """The values of the text model's config.json."""
    values = read_json_object(path)
    floats = {key: value for key, value in values.items() if key not in QUANTIZATION_KEYS}
    return text_values(floats, str(path), ignore_keys) or values


def read_tensors(path: Path) -> Mapping[str, SafetensorsTensor] | Mapping[str, PytorchTensor]:
    """By their own names, without those of wrappers around the model."""
    stored = _read_files(path)
    renamed = without_wrappers(path, stored)
    return {own: stored[name] for own, name in renamed.items()}  # type: ignore[return-value]


def _read_files(path: Path) -> Mapping[str, SafetensorsTensor] | Mapping[str, PytorchTensor]:
    # As in transformers, the single file takes precedence over an index.
    if (path / SINGLE_FILE).is_file():
        return read_safetensors(path / SINGLE_FILE)
    if (path / INDEX_FILE).is_file():
        return _read_shards(path)
    if has_pytorch_files(path):
        return read_pytorch(path)
    if any(path.glob("*.pth")):
        raise _bad(
            path,
            f"contains weights only as .pth files of another layout; load it with transformers and write {SINGLE_FILE} "
            "with save_pretrained(folder)",
        )
    _refuse_a_bundle(path)
    raise _bad(path, f"has neither {SINGLE_FILE} nor {INDEX_FILE}; download the weights too")


def _safetensors_only(
    path: Path, tensors: Mapping[str, SafetensorsTensor] | Mapping[str, PytorchTensor]
) -> Mapping[str, SafetensorsTensor]:
    found = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, SafetensorsTensor)}
    if len(found) < len(tensors):
        raise _bad(
            path,
            "has quantized weights in PyTorch's .bin files, which is not supported; load it with transformers and "
            f"write {SINGLE_FILE} with save_pretrained(folder)",
        )
    return found


def _read_shards(path: Path) -> Mapping[str, SafetensorsTensor]:
    index_path = path / INDEX_FILE
    shard_of = read_json_object(index_path).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise _bad(index_path, "'weight_map' must map tensor names to files; download it again")
    for name, file_name in shard_of.items():
        if not isinstance(file_name, str) or not _SHARD_NAME.fullmatch(file_name):
            raise _bad(
                index_path,
                f"tensor {name!r} is in {file_name!r}, expected the name of a .safetensors file beside the index",
            )
    tensors: dict[str, SafetensorsTensor] = {}
    for file_name in sorted(set(shard_of.values())):
        if not (path / file_name).is_file():
            raise _bad(path, f"shard {file_name} is missing, though {INDEX_FILE} lists it; download it")
        for name, tensor in read_safetensors(path / file_name).items():
            if name in tensors:
                raise _bad(
                    path,
                    f"tensor {name!r} is in both {tensors[name].path.name} and {file_name}; "
                    "download the checkpoint again",
                )
            if name not in shard_of:
                raise _bad(
                    path,
                    f"tensor {name!r} of {file_name} is not in {INDEX_FILE}; "
                    "their versions differ, so download all files",
                )
            tensors[name] = tensor
    for name, file_name in shard_of.items():
        if name not in tensors or tensors[name].path.name != file_name:
            raise _bad(
                path,
                f"{INDEX_FILE} lists tensor {name!r} in {file_name}, which does not contain it; download both again",
            )
    return tensors


def _refuse_a_bundle(path: Path) -> None:
    if (path / MANIFEST_FILE).is_file():
        raise _bad(path, "is already a bundle; pass the checkpoint that it was made from")


def _bad(path: Path, message: str) -> CheckpointError:
    return CheckpointError(f"{path}: {message}", file=str(path))


# The wrappers around a model that a training script saved: torch.compile's anywhere in a tensor's name, those of PEFT
# and of data parallelism in front of all names.
COMPILED = "_orig_mod."
OUTER = ("module.", "base_model.model.")
_ADAPTER_PARTS = (".lora_A.", ".lora_B.", ".base_layer.", ".modules_to_save.")


def without_wrappers(path: Path, names: Iterable[str]) -> Mapping[str, str]:
    """The names on disk by the tensors' own names. Raises CheckpointError for LoRA adapters that were not merged, and
    for two tensors that get one name.
    """
    renamed = {name: name.replace(COMPILED, "") for name in names}
    adapter = next((name for name in renamed if any(part in f".{name}" for part in _ADAPTER_PARTS)), None)
    if adapter is not None:
        raise CheckpointError(
            f"{path}: tensor {adapter} belongs to a PEFT model whose adapters are not merged; merge them "
            "(model.merge_and_unload()) and save that model",
            tensor=adapter,
        )
    for prefix in (*OUTER, *OUTER):
        if all(own.startswith(prefix) for own in renamed.values()):
            renamed = {name: own.removeprefix(prefix) for name, own in renamed.items()}
    found: dict[str, str] = {}
    for name, own in renamed.items():
        if own in found:
            raise CheckpointError(f"{path}: tensor {name} and another one are both {own} without wrappers", tensor=name)
        found[own] = name
    return found
