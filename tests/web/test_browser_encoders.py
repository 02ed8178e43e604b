"""Encoders in headless Chromium, on the page and in a worker: an embedding model, a reranker and a classifier of tokens
against the reference; and the choice between WebGPU and Transformers.js.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, lacks
from encoder_tokenizers import write_vectors_tokenizer
from light_bundle import few_kernels, lighten, one_compilation
from playwright.sync_api import Browser, Page
from served_demo import serving
from static_site import serve
from tiny_decisions import QUESTIONS, option_probabilities, their_probabilities, theirs, write_judge
from tiny_encoders import CONTEXT, make_encoder, write_json
from tolerances import F32, relative_error

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import open_bundle
from nearfar.compiler.pipeline.compile import CompileOptions, compile_any, compile_model
from nearfar.compiler.runtime.encoding import Text, classify, embed, encode
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.zero_shot import hypotheses_of, label_probabilities

START = """import { Engine } from "./nearfar.js";
import { connectEngine } from "./client.js";
const { submit } = GPUQueue.prototype;
window.submits = 0;
GPUQueue.prototype.submit = function (...args) { window.submits++; return submit.apply(this, args); };
window.load = (bundle) => Engine.load(bundle);
window.connect = (bundle) => connectEngine(new Worker("./engine_worker.js", { type: "module" }), bundle);
document.body.dataset.state = "ready";
"""
EMBED = """async (input) => {
    const engine = await window.load("./vectors/");
    const before = window.submits;
    const answer = await engine.embeddings.create({ input });
    const submits = window.submits - before;
    const best = await engine.rerank({ query: input[0], documents: input.slice(1, 4), return_documents: false });
    const errors = [];
    for (const asking of [engine.embeddings.create({ input: "" }), engine.classify({ input: "a" }),
        engine.embeddings.create({ input: "a", dimensions: 7 })]) {
        errors.push(await asking.catch((error) => [error.code, error.message]));
    }
    const { selfTest } = engine.info;
    engine.destroy();
    return { vectors: answer.data.map(({ embedding }) => embedding), tokens: answer.usage.total_tokens, submits, best,
        errors, selfTest };
}"""
SCORE = """async ([query, documents, text]) => {
    const reranker = await window.connect("./reranker/");
    const { results } = await reranker.rerank({ query, documents });
    const { data } = await reranker.score({ text_1: query, text_2: documents });
    const aborted = await reranker.rerank({ query, documents: new Array(5000).fill(query),
        signal: AbortSignal.abort(new Error("enough")) }).catch((error) => error.message);
    reranker.destroy();
    const tagger = await window.connect("./tagger/");
    const { data: [{ tokens }] } = await tagger.classify({ input: text });
    tagger.destroy();
    return { results, scores: data.map(({ score }) => score), aborted, tokens };
}"""
# Transformers.js and the model's ONNX form are those of the page.
CHOOSE = """async (texts) => {
    const { chooseEncoder, clientCandidate, pipelineCandidate } = await import("./choose-encoder.js");
    const { env, pipeline } = await import("./transformers.min.js");
    Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "./" });
    env.backends.onnx.wasm.wasmPaths = new URL("./ort/", location.href).href;
    const engine = await window.load("./vectors/");
    const extract = await pipeline("feature-extraction", "vectors-onnx", { device: "wasm", dtype: "fp32" });
    const near = clientCandidate("near", engine);
    const wasm = pipelineCandidate("wasm", extract);
    const options = { samples: { short: texts.slice(0, 1), batch: texts }, bundle: "./vectors/" };
    const other = pipelineCandidate("first", extract, { pooling: "cls" });
    const { refused } = await chooseEncoder([near, wasm, other], options);
    const measured = await chooseEncoder([near, wasm], options);
    const remembered = await chooseEncoder([near, wasm], options);
    const { data, candidate } = await remembered.embeddings.create({ input: texts });
    const { signal } = new AbortController();
    const vectors = await Promise.all([near, wasm].map((each) => each.embed(texts, signal)));
    const tooLong = await wasm.embed([texts.join(" ").repeat(9)], signal).catch((error) => [error.code, error.message]);
    engine.destroy();
    return { refused, vectors, tooLong, candidate, order: remembered.order(texts), measured: measured.measured,
        again: remembered.measured, remembered: [measured.remembered, remembered.remembered],
        chosen: data.map(({ embedding }) => embedding) };
}"""
HYBRID = """async ([baseURL, input, query, documents]) => {
    const { Hybrid } = await import("./hybrid.js");
    const nf = await Hybrid.create({ near: "./vectors/", far: { baseURL }, policy: { version: 1, mode: "auto" } });
    const vectors = {}, ranks = {}, routes = [];
    for (const pin of ["near", "far"]) {
        const answer = await nf.embeddings.create({ input, pin });
        vectors[pin] = answer.data.map(({ embedding }) => embedding);
        const best = await nf.rerank({ query, documents, pin });
        ranks[pin] = best.results.map(({ index }) => index);
        routes.push(answer.route.side, best.route.side);
    }
    nf.close();
    return { vectors, ranks, routes };
}"""
SCRIPTS = (
    "nearfar.js",
    "client.js",
    "worker.js",
    "encoders.js",
    "choose-encoder.js",
    "decide.js",
    "hybrid.js",
    "hybrid_encoding.js",
)
TRANSFORMERS_JS = ROOT / "web/node_modules/@huggingface/transformers"
TEXTS = [f"text {index} about boats, 日本 and naïve birds"[: 4 + index % 40] for index in range(64)]
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}
# Those of new blocks: products and biases by distance, and values that are normalized.
BY_DISTANCE = """async ([texts, input, labels]) => {
    const nli = await window.load("./nli/");
    const answers = [await nli.classify({ input, labels }), await nli.classify({ input, labels, multi_label: true })];
    nli.destroy();
    const vectors = {};
    for (const name of ["mpnet", "gemma"]) {
        const engine = await window.load(`./${name}/`);
        const { data } = await engine.embeddings.create({ input: texts });
        vectors[name] = data.map(({ embedding }) => embedding);
        engine.destroy();
    }
    return { probs: answers.map(({ data }) => data.map(({ probs }) => probs)), vectors };
}"""
# A page and a worker.
DECIDE = """async ([contexts, questions]) => {
    const found = [];
    for (const open of [window.load, window.connect]) {
        const engine = await open("./decider/");
        for (const context of contexts) found.push((await engine.decide(context, questions)).decisions);
        const generate = async () => { for await (const _ of engine.generate("a")); };
        const chat = () => engine.chat.completions.create({ messages: [{ role: "user", content: "a" }] });
        const fails = [() => engine.classify({ input: "a" }), generate, chat];
        for (const fail of fails) found.push(await fail().then(() => null, (error) => error.message));
        engine.destroy();
    }
    return found;
}"""
DOCUMENTS = ["a boat floats", "何ですか", "naïve 🦊 text, and more of it"]


def make_bundle(folder: Path, head: str, family: str = "bert", tokenizer: str = "bert-uncased", **config: Any) -> Path:
    """A tiny encoder with a tokenizer of the vectors, compiled with few kernels."""
    checkpoint = folder / "checkpoint"
    make_encoder(family, head, checkpoint, **config)
    write_vectors_tokenizer(checkpoint, tokenizer)
    options = CompileOptions(quantization="f32", activations=("float32",), context=CONTEXT)
    with few_kernels(tokens="many"):
        compile_model(str(checkpoint), folder / "bundle", options)
    return folder / "bundle"


def export_onnx(checkpoint: Path, folder: Path) -> None:
    options = CompileOptions(target="onnx", quantization="f32", activations=("float32",), context=CONTEXT)
    compile_any(str(checkpoint), folder, options)
    (folder / "tokenizer_config.json").unlink()
    write_json(
        folder / "tokenizer_config.json", tokenizer_class="BertTokenizer", pad_token="[PAD]", model_max_length=CONTEXT
    )


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("vectors"), "mean_tokens")


@pytest.fixture(scope="module")
def site(vectors: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    site = tmp_path_factory.mktemp("site")
    for script in SCRIPTS:
        shutil.copy(PAGE.parent / script, site)
    (site / "index.html").write_text('<!doctype html><body><script type="module" src="start.js"></script>')
    (site / "start.js").write_text(START)
    (site / "engine_worker.js").write_text('import { serveEngine } from "./worker.js";\nserveEngine(self);\n')
    shutil.copytree(vectors, site / "vectors")
    lighten(site / "vectors", self_test=True)
    return site


@pytest.fixture
def with_transformers_js(site: Path, vectors: Path) -> None:
    """Used by tests that need the site's Transformers.js and an ONNX form of its model of vectors."""
    if not TRANSFORMERS_JS.is_dir():
        lacks(f"{TRANSFORMERS_JS} is not there (npm ci in web/)")
    shutil.copy(TRANSFORMERS_JS / "dist/transformers.min.js", site)
    (site / "ort").symlink_to(TRANSFORMERS_JS / "node_modules/onnxruntime-web/dist")
    export_onnx(vectors.parent / "checkpoint", site / "vectors-onnx")


@pytest.fixture
def scorers(site: Path, tmp_path: Path) -> dict[str, Path]:
    """Bundles that SCORE loads, which are in the site as well."""
    bundles = {
        "reranker": make_bundle(tmp_path / "reranker", "ForSequenceClassification", num_labels=1),
        "tagger": make_bundle(tmp_path / "tagger", "ForTokenClassification", num_labels=3),
    }
    for name, bundle in bundles.items():
        shutil.copytree(bundle, site / name)
        lighten(site / name)
    return bundles


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with serve(site) as url:
        yield url


@pytest.fixture
def by_distance(site: Path, tmp_path: Path) -> dict[str, Path]:
    """Bundles of the families that BY_DISTANCE loads, which are in the site as well."""
    bundles = {
        "nli": make_bundle(tmp_path / "nli", "ForSequenceClassification", "deberta-v2", "deberta-v3", id2label=NLI),
        "mpnet": make_bundle(tmp_path / "mpnet", "mean_tokens", "mpnet", "mpnet"),
        "gemma": make_bundle(tmp_path / "gemma", "mean_tokens", "embedding_gemma2_text", "gemma"),
    }
    for name, bundle in bundles.items():
        shutil.copytree(bundle, site / name)
        lighten(site / name)
    return bundles


@pytest.fixture(scope="module")
def page(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("body[data-state=ready]", state="attached")
    yield page
    page.close()


def reference(bundle: Path) -> tuple[Tokenizer, ReferenceRunner]:
    opened = open_bundle(bundle)
    return Tokenizer(opened.tokenizer_files()), ReferenceRunner(opened, activation="float32")


# test_documents_page.py embeds in Chromium, and web/test/retrieval/vectors.test.ts on SwiftShader.
@pytest.mark.exhaustive
def test_sixty_four_texts_are_one_submission_with_the_vectors_of_the_reference(page: Page, vectors: Path) -> None:
    found = page.evaluate(EMBED, TEXTS)
    tokenizer, runner = reference(vectors)
    ids = [tokenizer.encode(text) for text in TEXTS]
    expected = np.stack([embed(runner, each) for each in ids])
    assert relative_error(np.array(found["vectors"], np.float32), expected) < F32
    assert found["tokens"] == sum(map(len, ids))
    assert found["submits"] == 1
    cosines = expected[1:4] @ expected[0]
    assert [each["index"] for each in found["best"]["results"]] == np.argsort(-cosines, kind="stable").tolist()
    assert [code for code, _ in found["errors"]] == ["request_error"] * 3
    assert "input is empty" in found["errors"][0][1]
    assert "has no classes" in found["errors"][1][1]
    assert "dimensions is 7" in found["errors"][2][1]
    assert found["selfTest"]["state"] == "passed"
    assert found["selfTest"]["largestDeviation"] > 0


@pytest.mark.exhaustive
@pytest.mark.usefixtures("with_transformers_js")
def test_the_fastest_of_webgpu_and_transformers_js_is_chosen_by_measurement(page: Page, vectors: Path) -> None:
    texts = TEXTS[3:9]
    found = page.evaluate(CHOOSE, texts)
    tokenizer, runner = reference(vectors)
    expected = np.stack([embed(runner, tokenizer.encode(text)) for text in texts])
    for each in (*found["vectors"], found["chosen"]):
        assert relative_error(np.array(each, np.float32), expected) < F32
    assert [each["name"] for each in found["refused"]] == ["first"]
    assert "cosine of its vector with that of 'near'" in found["refused"][0]["reason"]
    assert [each["sample"] for each in found["measured"]] == ["short", "batch"]
    for each in found["measured"]:
        assert each["milliseconds"][each["fastest"]] == min(each["milliseconds"].values()) > 0
    assert (found["again"], found["remembered"]) == (found["measured"], [False, True])
    assert found["candidate"] == found["order"][0] == found["measured"][1]["fastest"]
    assert found["tooLong"][0] == "request_error"
    assert f"and 'wasm' reads {CONTEXT}" in found["tooLong"][1]


@pytest.fixture
def served(address: str, vectors: Path, tmp_path: Path) -> Iterator[str]:
    """The address of `nearfar serve` with the embedding model."""
    checkpoint = vectors.parent / "checkpoint"
    with one_compilation():
        options = CompileOptions(target="cpu", quantization="f32", activations=("float32",), context=CONTEXT)
        compile_model(str(checkpoint), tmp_path / "checkpoint", options)
    with serving(str(tmp_path / "checkpoint"), "--cors-origin", address.rstrip("/"), folder=tmp_path) as (_, url):
        yield url


@pytest.mark.exhaustive
def test_a_hybrid_embeds_and_ranks_alike_on_both_sides(page: Page, served: str, vectors: Path) -> None:
    texts = TEXTS[3:6]
    found = page.evaluate(HYBRID, [f"{served}/v1", texts, "what is a boat", DOCUMENTS])
    tokenizer, runner = reference(vectors)
    expected = np.stack([embed(runner, tokenizer.encode(text)) for text in texts])
    for side in ("near", "far"):
        assert relative_error(np.array(found["vectors"][side], np.float32), expected) < F32, side
    assert found["ranks"]["near"] == found["ranks"]["far"]
    assert found["routes"] == ["near", "near", "far", "far"]


@pytest.mark.exhaustive
def test_a_worker_ranks_and_labels_as_the_reference_does(page: Page, scorers: dict[str, Path]) -> None:
    text = "Hello naïve world"
    found = page.evaluate(SCORE, ["what is a boat", DOCUMENTS, text])
    tokenizer, runner = reference(scorers["reranker"])
    asked = [tokenizer.encode_shortened("what is a boat", document, 1000) for document in DOCUMENTS]
    pairs = [Text(each.ids, each.token_types) for each in asked]
    expected = np.concatenate(classify(runner, pairs))
    np.testing.assert_allclose(found["scores"], expected, rtol=1e-4)
    assert [each["index"] for each in found["results"]] == np.argsort(-expected, kind="stable").tolist()
    assert found["results"][0]["document"] == {"text": DOCUMENTS[int(expected.argmax())]}
    assert found["aborted"] == "enough"
    tokenizer, runner = reference(scorers["tagger"])
    encoded = tokenizer.encode_shortened(text, None, CONTEXT)
    (probabilities,) = classify(runner, [Text(encoded.ids)])
    np.testing.assert_allclose([each["probs"] for each in found["tokens"]], probabilities, rtol=1e-4)
    assert [each["token_id"] for each in found["tokens"]] == encoded.ids
    assert [each["label"] for each in found["tokens"]] == [f"LABEL_{row.argmax()}" for row in probabilities]
    places = [(each.get("start", 0), each.get("end", 0)) for each in found["tokens"]]
    assert places == encoded.offsets


@pytest.mark.exhaustive
def test_scores_by_distance_and_normalized_values_are_those_of_the_reference(
    page: Page, by_distance: dict[str, Path]
) -> None:
    inputs, labels = ["boats float  on water", "naïve birds"], ["sea", "sky", "birds"]
    found = page.evaluate(BY_DISTANCE, [TEXTS[5:9], inputs, labels])
    for name in ("mpnet", "gemma"):
        tokenizer, runner = reference(by_distance[name])
        expected = np.stack([embed(runner, tokenizer.encode(text)) for text in TEXTS[5:9]])
        assert relative_error(np.array(found["vectors"][name], np.float32), expected) < F32, name
    tokenizer, runner = reference(by_distance["nli"])
    assert runner.manifest.classifier is not None
    hypotheses = hypotheses_of(runner.manifest.classifier, labels)
    for multi_label, probabilities in zip((False, True), found["probs"], strict=True):
        for text, own in zip(inputs, probabilities, strict=True):
            pairs = [Text(tokenizer.encode_shortened(text, each, 1000).ids) for each in hypotheses.texts]
            rows = encode(runner, pairs)
            expected = label_probabilities(hypotheses, rows, multi_label=multi_label)
            np.testing.assert_allclose(own, expected, rtol=1e-4)


# Texts that are read at once, and in chunks of 64 tokens with recurrent states.
@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["qwen3", "qwen3_5_text"])
def test_a_decision_head_decides_as_in_transformers(family: str, page: Page, site: Path, tmp_path: Path) -> None:
    write_judge(tmp_path / "checkpoint", family)
    shutil.rmtree(site / "decider", ignore_errors=True)
    with few_kernels(tokens="many"):
        options = CompileOptions(quantization="f32", activations=("float32",), context=800)
        compile_model(str(tmp_path / "checkpoint"), site / "decider", options)
    lighten(site / "decider", self_test=True)
    states = ["dim the </s> lights", [{"role": "user", "content": "dim the lights"}]]
    found = page.evaluate(DECIDE, [states, QUESTIONS])
    model = theirs(tmp_path / "checkpoint")
    for first in (0, 5):
        for state, decisions in zip(states, found[first : first + 2], strict=True):
            expected = their_probabilities(model, tmp_path / "checkpoint", state)
            own = option_probabilities(decisions)
            assert own.keys() == expected.keys()
            for name, chances in expected.items():
                np.testing.assert_allclose(own[name], list(chances.values()), rtol=0, atol=1e-4)
        assert "answers typed questions" in found[first + 2]
        assert ["generates no text" in message for message in found[first + 3 : first + 5]] == [True, True]
