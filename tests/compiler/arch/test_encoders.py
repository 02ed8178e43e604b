"""Encoders, and decoders without pages, on the reference runner against transformers: vectors, and the scores of
classifiers.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_target import compile_plain
from tiny_encoders import CONTEXT, FAMILIES, logits_of, make_encoder, rows_of, texts_of, write_json
from tiny_models import write_modules
from tolerances import F32, relative_error

from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.formats.distance_tensors import MadeTensor
from nearfar.compiler.formats.huggingface import open_checkpoint
from nearfar.compiler.formats.task_adapters import for_adapter, with_adapters
from nearfar.compiler.ir.tasks import TransitionSpec
from nearfar.compiler.pipeline.graphs import graphs_of
from nearfar.compiler.pipeline.weights import check_tensors
from nearfar.compiler.runtime.batch import Chunk, make_batch
from nearfar.compiler.runtime.encoder_batch import make_text_batch
from nearfar.compiler.runtime.encoding import Text, classify, embed, encode
from nearfar.compiler.runtime.errors import CheckpointError, NearfarError, RequestError, UnsupportedModel
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.runner import Limits
from nearfar.compiler.runtime.trust import check_runner

NO_NUMBERS = (math.inf, 10**400, True)
# One token, a complete context, and others; 17 texts in all.
TEXTS = texts_of([1, 17, 3, CONTEXT, 40, 33, 5, 2, 1, 1, 9, 31, 32, 16, 64, 7, 20])


def compiled(checkpoint: Path, folder: Path, *, self_test: bool = False) -> tuple[Bundle, ReferenceRunner]:
    bundle = compile_plain(checkpoint, folder / "bundle", "f32", CONTEXT, self_test=self_test)
    return bundle, ReferenceRunner(bundle, limits=Limits(sequences=5, tokens=100))


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_the_means_of_transformers_rows(family: str, tmp_path: Path) -> None:
    model = make_encoder(family, "mean_tokens", tmp_path / "checkpoint")
    bundle, runner = compiled(tmp_path / "checkpoint", tmp_path, self_test=True)
    check_runner(runner, bundle.manifest)
    assert bundle.manifest.vector_test is not None
    assert not bundle.manifest.paged
    assert bundle.manifest.plan("embed").states == {}
    found = encode(runner, [Text(text) for text in TEXTS])
    for text, vector in zip(TEXTS, found, strict=True):
        assert relative_error(vector, rows_of(model, text).mean(axis=0)) < F32, len(text)
    unit = embed(runner, TEXTS[1])
    assert relative_error(unit, found[1] / np.linalg.norm(found[1])) < F32


def test_a_decoder_that_is_not_causal_sees_complete_texts(tmp_path: Path) -> None:
    model = make_encoder("qwen3", "mean_tokens", tmp_path / "checkpoint", is_causal=False)
    _, runner = compiled(tmp_path / "checkpoint", tmp_path)
    vectors = encode(runner, [Text(text) for text in TEXTS[:4]])
    for text, vector in zip(TEXTS, vectors, strict=False):
        assert relative_error(vector, rows_of(model, text).mean(axis=0)) < F32, len(text)


def test_the_text_model_of_embedding_gemma_2_is_read_beside_a_tower(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "checkpoint"
    model = make_encoder("embedding_gemma2_text", "mean_tokens", folder)
    values = json.loads((folder / "config.json").read_text())
    outer = {"model_type": "embedding_gemma2", "text_config": values, "vision_config": {}, "eoa_token_index": 7}
    (folder / "config.json").write_text(json.dumps(outer))
    tensors = {f"language_model.{name}": each for name, each in load_file(folder / "model.safetensors").items()}
    tower = {"vision_tower.patch_embedder.input_proj.weight": np.zeros((2, 2), np.float32)}
    save_file(tensors | tower, folder / "model.safetensors")
    bundle, runner = compiled(folder, tmp_path)
    assert bundle.manifest.embedding is not None
    assert bundle.manifest.embedding.size == 50
    (found,) = encode(runner, [Text(TEXTS[4])])
    assert relative_error(found, rows_of(model, TEXTS[4]).mean(axis=0)) < F32
    for key in ("attention_k_eq_v", "num_kv_shared_layers"):
        (folder / "config.json").write_text(json.dumps({**outer, "text_config": {**values, key: True}}))
        with pytest.raises(UnsupportedModel, match=f"{key!r} is true"):
            open_checkpoint(folder)


@pytest.mark.parametrize(("family", "head"), [
    (family, head)
    for family, own in FAMILIES.items()
    for head in (
        *["ForSequenceClassification"] * own.labels_texts,
        *["ForTokenClassification"] * own.labels_tokens,
    )
])  # fmt: skip
def test_scores_are_transformers_logits(family: str, head: str, tmp_path: Path) -> None:
    model = make_encoder(family, head, tmp_path / "checkpoint", num_labels=3)
    bundle, runner = compiled(tmp_path / "checkpoint", tmp_path)
    assert bundle.manifest.classifier is not None
    assert bundle.manifest.classifier.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    found = encode(runner, [Text(text) for text in TEXTS])
    for text, scores in zip(TEXTS, found, strict=True):
        assert relative_error(scores, logits_of(model, text)) < F32, len(text)
    chances = classify(runner, [Text(TEXTS[1])])[0]
    np.testing.assert_allclose(chances.sum(axis=-1), 1, rtol=1e-6)


def test_labels_form_spans_if_the_checkpoint_calibrates_them(tmp_path: Path) -> None:
    folder, family = tmp_path / "checkpoint", "openai_privacy_filter"
    labels = ["O", *(f"{part}-{kind}" for kind in ("private_person", "secret") for part in "BIES")]
    names = dict(enumerate(labels))
    make_encoder(family, "ForTokenClassification", folder, num_labels=9, id2label=names)
    found = open_checkpoint(folder).classifier
    assert found is not None
    assert (found.labels, found.transitions) == (tuple(labels), TransitionSpec())
    biases = {f"transition_bias_{each.name}": index / 4 for index, each in enumerate(fields(TransitionSpec), -2)}

    def calibrate(values: object) -> None:
        calibration = {"operating_points": {"default": {"biases": values}, "strict": {}}}
        (folder / "viterbi_calibration.json").write_text(json.dumps(calibration))

    calibrate(biases)
    bundle, _ = compiled(folder, tmp_path)
    assert bundle.manifest.classifier is not None
    assert bundle.manifest.classifier.transitions == TransitionSpec(-0.5, -0.25, 0, 0.25, 0.5, 0.75)
    for values, error, message in (
        (None, CheckpointError, "'biases' is missing"),
        ({**biases, "transition_bias_x": 0}, UnsupportedModel, "unknown biases .*transition_bias_x"),
        ({**biases, "transition_bias_end_to_start": "0"}, CheckpointError, "transition_bias_end_to_start must be"),
        *(({**biases, "transition_bias_end_to_start": each}, CheckpointError, "be finite") for each in NO_NUMBERS),
    ):
        calibrate(values)
        with pytest.raises(error, match=message):
            open_checkpoint(folder)
    calibrate(biases)
    write_json(folder / "config.json", id2label={**names, 8: "S-other"})
    with pytest.raises(UnsupportedModel, match="calibrates spans, but the model's labels are O, B-private_person"):
        open_checkpoint(folder)
    (folder / "viterbi_calibration.json").unlink()
    plain = open_checkpoint(folder).classifier
    assert plain is not None
    assert plain.transitions is None


@pytest.mark.parametrize("pooling", ["bos", "mean"])
def test_eurobert_pools_before_its_head_unless_the_config_says_otherwise(pooling: str, tmp_path: Path) -> None:
    head = "ForSequenceClassification"
    model = make_encoder("eurobert", head, tmp_path / "checkpoint", num_labels=3, classifier_pooling=pooling)
    bundle, runner = compiled(tmp_path / "checkpoint", tmp_path)
    assert bundle.manifest.classifier is not None
    assert not bundle.manifest.classifier.pools_late
    (found,) = encode(runner, [Text(TEXTS[1])])
    assert relative_error(found, logits_of(model, TEXTS[1])) < F32


def test_gtes_own_code_writes_other_names_and_stretches_the_rotation(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder, factor = tmp_path / "checkpoint", 2.0
    theta, width = 16000.0 * factor, factor ** (2 / 12)
    rope = {"rope_type": "linear", "rope_theta": theta, "factor": width}
    model = make_encoder("gte", "mean_tokens", folder, rope_parameters=rope)
    save_file(
        {f"new.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()},
        folder / "model.safetensors",
    )
    values = json.loads((folder / "config.json").read_text())
    del values["rope_parameters"]
    old = {"model_type": "new", "position_embedding_type": "rope", "rope_theta": 16000.0, "pack_qkv": True}
    ntk = {"type": "ntk", "factor": factor}
    (folder / "config.json").write_text(json.dumps({**values, **old, "rope_scaling": ntk}))
    _, runner = compiled(folder, tmp_path)
    (found,) = encode(runner, [Text(TEXTS[4])])
    assert relative_error(found, rows_of(model, TEXTS[4]).mean(axis=0)) < F32
    write_json(folder / "config.json", rope_scaling={**ntk, "mixed_b": 0.5})
    with pytest.raises(UnsupportedModel, match="'mixed_b' is"):
        open_checkpoint(folder)


def test_the_adapter_of_a_task_is_added_to_every_matrix(tmp_path: Path) -> None:
    import transformers
    from safetensors.numpy import load_file, save_file

    folder, tasks, rank = tmp_path / "checkpoint", ["retrieval.query", "separation"], 2
    make_encoder("jina_embeddings_v3", "mean_tokens", folder)
    rng = np.random.default_rng(5)
    stored, merged = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        merged[name] = tensor
        if tensor.ndim < 2:
            stored[f"roberta.{name}"] = tensor
            continue
        a, b = (
            rng.normal(size=(2, *shape)).astype(np.float32) for shape in ((rank, tensor.shape[1]), (len(tensor), rank))
        )
        merged[name] = tensor + b[1] @ a[1] / rank
        stem = f"roberta.{name.removesuffix('.weight')}.parametrizations.weight"
        # Those of tables are stored the other way round.
        parts = (b, a) if "embeddings" in name else (a, b)
        stored |= {f"{stem}.original": tensor, f"{stem}.0.lora_A": parts[0], f"{stem}.0.lora_B": parts[1]}
    save_file(merged, folder / "model.safetensors", {"format": "pt"})
    model = transformers.JinaEmbeddingsV3Model.from_pretrained(folder, dtype="float32").eval()
    save_file(stored, folder / "model.safetensors")
    rotation = {"position_embedding_type": "rotary", "rotary_emb_base": 20000.0, "rope_parameters": None}
    adapters = {"lora_adaptations": tasks, "lora_alpha": 1, "lora_rank": rank}
    write_json(folder / "config.json", model_type="xlm-roberta", **rotation, **adapters)
    write_json(folder / "config_sentence_transformers.json", prompts={name: f"{name}: " for name in tasks})
    path, name = str(folder / "config.json"), "encoder.layers.0.mixer.Wqkv.parametrizations.weight"
    rows = {f"{name}.{part}": MadeTensor(part, 3, lambda: np.zeros(3, np.float32)) for part in ("original", "0.lora_A")}
    for tensors, values, message in (
        (rows, {"lora_rank": "2"}, "'lora_rank' is '2'"),
        (rows, {"lora_adaptations": [None]}, "'lora_adaptations' is .* expected a list of strings"),
        (rows, {}, f"{name}.0.lora_B is missing"),
        ({**rows, f"{name}.0.lora_B": rows[f"{name}.original"]}, {}, "expected 2 of rank 2 for a matrix"),
    ):
        with pytest.raises(CheckpointError, match=message):
            with_adapters(tensors, {**adapters, **values}, path)
    checkpoint = open_checkpoint(folder)
    for adapter, message in (
        (None, "one of its adapters with --adapter: retrieval.query, separation"),
        ("x", "no .* 'x'"),
    ):
        with pytest.raises(RequestError, match=message):
            for_adapter(checkpoint, adapter)
    bundle = compile_plain(folder, tmp_path / "bundle", "f32", CONTEXT, self_test=False, adapter=tasks[1])
    assert bundle.manifest.embedding is not None
    assert bundle.manifest.embedding.default_prompt == tasks[1]
    (found,) = encode(ReferenceRunner(bundle, limits=Limits(sequences=5, tokens=100)), [Text(TEXTS[4])])
    assert relative_error(found, rows_of(model, TEXTS[4]).mean(axis=0)) < F32


@pytest.mark.parametrize("family", ["bert", "nomic_bert"])
def test_the_two_texts_of_a_pair_have_types_of_their_own(family: str, tmp_path: Path) -> None:
    model = make_encoder(family, "ForSequenceClassification", tmp_path / "checkpoint", num_labels=1)
    bundle, runner = compiled(tmp_path / "checkpoint", tmp_path)
    classifier = bundle.manifest.classifier
    assert classifier is not None
    assert (classifier.relevance, classifier.activation) == (0, "sigmoid")
    ids = TEXTS[4]
    types = [0] * 12 + [1] * (len(ids) - 12)
    alone, pair = encode(runner, [Text(ids), Text(ids, types)])
    assert relative_error(pair, logits_of(model, ids, types)) < F32
    assert relative_error(pair, alone) > F32
    (relevance,) = classify(runner, [Text(ids, types)])
    assert relevance == pytest.approx(1 / (1 + np.exp(-pair)), rel=1e-5)


# Models without types of tokens read the pair alone.
@pytest.mark.parametrize("family", ["albert", "deberta-v2", "electra", "eurobert", "gte", "mpnet"])
def test_a_reranker_has_the_relevance_of_transformers(family: str, tmp_path: Path) -> None:
    model = make_encoder(family, "ForSequenceClassification", tmp_path / "checkpoint", num_labels=1)
    write_json(tmp_path / "checkpoint/config.json", sentence_transformers={"activation_fn": "torch.nn.Identity"})
    bundle, runner = compiled(tmp_path / "checkpoint", tmp_path)
    classifier = bundle.manifest.classifier
    assert classifier is not None
    assert (classifier.relevance, classifier.activation) == (0, "none")
    ids = TEXTS[4]
    types = [0] * 12 + [1] * (len(ids) - 12) if bundle.manifest.spec.num_token_types > 1 else []
    (relevance,) = classify(runner, [Text(ids, types)])
    assert relative_error(relevance, logits_of(model, ids, types)) < F32


def test_a_deberta_without_a_convolution_reads_none(tmp_path: Path) -> None:
    model = make_encoder("deberta-v2", "mean_tokens", tmp_path / "checkpoint", conv_kernel_size=0, conv_act="elu")
    bundle, runner = compiled(tmp_path / "checkpoint", tmp_path)
    assert bundle.manifest.spec.convolution is None
    (vector,) = encode(runner, [Text(TEXTS[4])])
    assert relative_error(vector, rows_of(model, TEXTS[4]).mean(axis=0)) < F32


# EmbeddingGemma has dense layers behind the mean.
@pytest.mark.parametrize(("family", "mode", "pooled"), [
    ("distilbert", "cls_token", lambda rows: rows[0]), ("distilbert", "max_tokens", lambda rows: rows.max(axis=0)),
    ("distilbert", "lasttoken", lambda rows: rows[-1]),
    ("distilbert", "mean_sqrt_len_tokens", lambda rows: rows.sum(axis=0) / len(rows) ** 0.5),
    ("gemma3_text", "mean_tokens", lambda rows: rows.mean(axis=0)),
])  # fmt: skip
def test_dense_layers_follow_every_pooling(family: str, mode: str, pooled: Any, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    checkpoint = tmp_path / "checkpoint"
    model = make_encoder(family, "mean_tokens", checkpoint)
    write_modules(checkpoint, "none", behind=("Dense", "Normalize"))
    (checkpoint / "1_Pooling/config.json").write_text(f'{{"pooling_mode_{mode}": true}}')
    (checkpoint / "2_Dense").mkdir()
    write_json(checkpoint / "2_Dense/config.json", in_features=72, out_features=20,
               activation_function="torch.nn.modules.activation.Tanh")  # fmt: skip
    rng = np.random.default_rng(3)
    weight, bias = rng.normal(size=(20, 72)).astype(np.float32) / 8, rng.normal(size=20).astype(np.float32)
    save_file({"linear.weight": weight, "linear.bias": bias}, checkpoint / "2_Dense/model.safetensors")
    bundle, runner = compiled(checkpoint, tmp_path)
    assert bundle.manifest.embedding is not None
    assert bundle.manifest.embedding.size == 20
    expected = np.tanh(weight @ pooled(rows_of(model, TEXTS[1])) + bias)
    assert relative_error(embed(runner, TEXTS[1]), expected / np.linalg.norm(expected)) < F32


def test_old_names_and_prefixes_are_read_as_todays(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "checkpoint"
    make_encoder("bert", "mean_tokens", folder)
    tensors = load_file(folder / "model.safetensors")
    before = dict(open_checkpoint(folder).tensors)

    def old(name: str) -> str:
        return f"bert.{name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta')}"

    renamed = {old(name): tensor for name, tensor in tensors.items()}
    extra: dict[str, Any] = {
        "bert.embeddings.position_ids": np.arange(4),
        "cls.predictions.bias": np.zeros(3, np.float32),
    }
    save_file({**renamed, **extra}, folder / "model.safetensors")
    after = open_checkpoint(folder).tensors
    assert after.keys() == before.keys() | {"cls.predictions.bias"}
    compile_plain(folder, tmp_path / "bundle", "f32", CONTEXT)


def test_a_text_is_cut_where_sentence_transformers_cuts_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    make_encoder("bert", "mean_tokens", folder)
    write_json(folder / "sentence_bert_config.json", max_seq_length=20)
    write_json(folder / "config.json", matryoshka_dimensions=[64, 16])
    checkpoint = open_checkpoint(folder)
    assert checkpoint.max_tokens == 20
    assert checkpoint.embedding is not None
    assert checkpoint.embedding.dimensions == (16, 64)


def test_the_tokenizer_neither_pads_nor_cuts(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = tmp_path / "checkpoint"
    make_encoder("bert", "mean_tokens", folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=128, pad_id=3)
    tokenizer.enable_truncation(5)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "sentence_bert_config.json", do_lower_case=True)
    content = open_checkpoint(folder).tokenizer.content
    assert Tokenizer.from_str(content.decode()).encode("ABCDEFGH").tokens == list("abcdefgh")


@pytest.mark.parametrize(("values", "message"), [
    ({"hidden_act": "mish"}, "'hidden_act' is 'mish', which is not supported"),
    ({"position_embedding_type": "relative_key"}, "'position_embedding_type' is 'relative_key'"),
    ({"is_decoder": True}, "'is_decoder' is true"),
    ({"num_attention_heads": 7}, "not a multiple of 7 heads"),
    ({"num_hidden_layers": 10**12}, "the maximum is 10000"),
    ({"new_maths": 3}, "unknown key 'new_maths' = 3"),
    ({"architectures": ["BertForTokenClassification"], "id2label": {"0": "a", "2": "b"}}, "'id2label' must map"),
])  # fmt: skip
def test_what_would_change_the_results_is_refused_by_name(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    make_encoder("bert", "ForSequenceClassification", tmp_path)
    write_json(tmp_path / "config.json", **values)
    with pytest.raises(NearfarError, match=message) as error:
        open_checkpoint(tmp_path)
    assert isinstance(error.value, CheckpointError | UnsupportedModel)


@pytest.mark.parametrize(("family", "values", "message"), [
    ("deberta-v2", {"conv_kernel_size": 4}, "'conv_kernel_size' is 4; supported: odd numbers and 0"),
    ("deberta-v2", {"conv_groups": 2}, "'conv_groups' is 2"),
    ("deberta-v2", {"conv_act": "elu"}, "'conv_act' is 'elu', which is not supported"),
    ("deberta-v2", {"pos_att_type": "c2p"}, "'pos_att_type' is 'c2p'"),
    ("deberta-v2", {"position_biased_input": True}, "'position_biased_input' is true"),
    ("mpnet", {"relative_attention_num_buckets": 64}, "'relative_attention_num_buckets' is 64"),
])  # fmt: skip
def test_other_scores_by_distance_are_refused(
    family: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_encoder(family, "mean_tokens", tmp_path)
    write_json(tmp_path / "config.json", **values)
    with pytest.raises(UnsupportedModel, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(("family", "values", "missing", "message"), [
    ("deberta-v2", {"position_buckets": 8}, "", "rel_embeddings.weight has the shape .24, 72., expected .16, 72."),
    ("deberta-v2", {}, "encoder.LayerNorm.weight", "encoder.LayerNorm.weight is missing"),
    ("deberta-v2", {}, "encoder.rel_embeddings.weight", "encoder.rel_embeddings.weight is missing"),
    ("mpnet", {}, "encoder.relative_attention_bias.weight", "encoder.relative_attention_bias.weight is missing"),
    ("deberta-v2", {"max_relative_positions": 7}, "", "'max_relative_positions' is 7, not above half of"),
    ("deberta-v2", {"share_att_key": False}, "", "layer.0.attention.self.pos_key_proj.weight is missing"),
    ("mpnet", {"num_attention_heads": 3}, "", "relative_attention_bias.weight has the shape .32, 6., expected .32, 3."),
])  # fmt: skip
def test_tensors_of_distances_that_do_not_fit_are_refused(
    family: str, values: dict[str, Any], missing: str, message: str, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    make_encoder(family, "mean_tokens", tmp_path)
    write_json(tmp_path / "config.json", **values)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: each for name, each in tensors.items() if name != missing}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "family",
    ["roberta", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in FAMILIES if each != "roberta")],
)
def test_a_tensor_that_is_missing_or_too_short_is_named(family: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    own = FAMILIES[family]
    make_encoder(family, "ForSequenceClassification" if own.labels_texts else "mean_tokens", tmp_path)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)

    def read(tensors: dict[str, Any]) -> None:
        save_file(tensors, file, {"format": "pt"})
        checkpoint = open_checkpoint(tmp_path)
        for graph in graphs_of(checkpoint, context=CONTEXT).values():
            check_tensors(checkpoint, graph.parameters)

    read(whole)
    # Of those in several layers, the first.
    for name in [name for name in whole if not re.search(r"\.[1-9]\d*\.", name)]:
        rest = {each: tensor for each, tensor in whole.items() if each != name}
        for tensors in (rest, {**rest, name: whole[name][:-1].copy()}):
            with pytest.raises(CheckpointError) as refused:
                read(tensors)
            text = str(refused.value)
            # A table that is shorter than a number of config.json is named by that.
            assert name.partition(".")[2] in text or re.search(r"config.json: '\w+' is", text), name


def test_batches_of_incomplete_texts_are_refused(tmp_path: Path) -> None:
    make_encoder("bert", "mean_tokens", tmp_path / "checkpoint")
    bundle, runner = compiled(tmp_path / "checkpoint", tmp_path)
    with pytest.raises(RequestError, match="must hold complete texts"):
        runner.embed(make_batch([Chunk([1, 2], 3, [0])], bundle.manifest.page_size))
    with pytest.raises(RequestError, match="token types beyond 0 to 1"):
        runner.embed(make_text_batch([[1, 2]], [[0, 2]]))
    for text, message in (([], "empty"), ([509], "not in the vocabulary"), ([1] * 65, "context length is 64")):
        with pytest.raises(RequestError, match=message):
            encode(runner, [Text(text)])
    with pytest.raises(RequestError, match="the types of 1"):
        encode(runner, [Text([1, 2], [0])])
