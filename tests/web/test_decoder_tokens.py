"""Tiny models generate the same greedy tokens on numpy and in headless Chromium: families whose layers differ, with
experts, and with recurrent layers, whose sessions keep their states.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from decoder_families import TOKENS, new_family, randomize, save
from draft_assistant import DraftAssistant
from draft_heads import DraftHeads
from gguf import GGMLQuantizationType as Type
from gguf_files import WIDER, make_gguf
from light_bundle import few_kernels, lighten
from page_model import page_bundle
from playwright.sync_api import Browser, BrowserContext, Page
from static_site import serve
from tokenizers import Tokenizer

from nearfar.compiler.browser.page_server import PAGE
from nearfar.compiler.bundle.folder import Bundle
from nearfar.compiler.ir.sampling import Sampler
from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.generate import generate
from nearfar.compiler.runtime.reference import ReferenceRunner
from nearfar.targets.webgpu import lower

# With the prompt, four full pages and a token of the fifth.
MAX_TOKENS = 24
# Of answers with drafts, of which a step computes several tokens, and of experts that are read on demand.
DRAFTED_TOKENS = 12
# Added to the factors of norms behind sub-layers.
MORE_BEHIND = 20
# Sharper attention, so that a token's position matters.
SETTINGS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"query_pre_attn_scalar": 4},
    # With experts on the second layer alone, answers repeat less.
    "qwen3_moe": {"num_hidden_layers": 2, "mlp_only_layers": [0], "num_experts": 8, "num_experts_per_tok": 2},
    # As many heads of keys as of values, as in 0.8B and 2B: decoding takes one kernel for convolution and delta rule.
    "qwen3_5_text": {"linear_num_key_heads": 4},
}
SCRIPT = """async ([bundle, promptIds, maxTokens]) => {
    const { Engine } = await import("./nearfar.js");
    const engine = await Engine.load(bundle, { tuning: false });
    const ids = [];
    for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens })) ids.push(tokenId);
    const { selfTest } = engine.info;
    engine.destroy();
    return [ids, selfTest.state];
}"""
DRAFT_SCRIPT = """async ([bundle, draft, promptIds, maxTokens]) => {
    const { Engine } = await import("./nearfar.js");
    const engine = await Engine.load(bundle, { tuning: false, selfTest: "never", ...(draft && { draft }) });
    const answer = async (sampling) => {
        const ids = [];
        for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens, sampling })) ids.push(tokenId);
        return ids;
    };
    const answers = await Promise.all([answer({}), answer({ temperature: 1, seed: 7 })]);
    const { draftedTokens, acceptedTokens } = engine.counts;
    engine.destroy();
    return [answers, draftedTokens, acceptedTokens];
}"""
EXPERTS_SCRIPT = """async ([bundle, promptIds, maxTokens, loads]) => {
    const { Engine } = await import("./nearfar.js");
    const found = [];
    for (const options of loads) {
        const engine = await Engine.load(bundle, { tuning: false, selfTest: "never", ...options });
        const ids = [];
        for await (const { tokenId } of engine.generateTokens({ promptIds, maxTokens })) ids.push(tokenId);
        found.push({ ids, ...engine.info, ...engine.counts });
        engine.destroy();
    }
    return found;
}"""
SESSION_SCRIPT = """import { Engine } from "./nearfar.js";
window.engine = await Engine.load("./qwen3_5_text/", { tuning: false, selfTest: "never" });
window.ask = async (session, text, maxTokens) => {
    const ids = [];
    let last = null;
    for await (const event of session.generate(text, { maxTokens, temperature: 0 })) {
        if (event.type === "token") ids.push(event.tokenId);
        last = event;
    }
    return { ids, prompt: session.messages.slice(0, -1).map(({ content }) => content).join(""), ...last.timings };
};
document.body.dataset.state = "ready";
"""


def make_talkative(family: str, folder: Path) -> None:
    """Write a checkpoint whose answers are varied.

    The logits of tied weights favour the last token, unless the layers add much to its embedding.
    """
    import torch

    model = new_family(family, **SETTINGS.get(family, {}))
    randomize(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if model.config.tie_word_embeddings and name.split(".")[-2].startswith("post_"):
                parameter.add_(MORE_BEHIND)
    save(model, folder)
    # No token ends its answers.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def site(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    site = tmp_path_factory.mktemp("decoders")
    for script in ("nearfar.js", "drafts.js", "experts.js"):
        shutil.copy(PAGE.parent / script, site)
    (site / "index.html").write_text("<!doctype html><title>decoders</title>")
    (site / "session.html").write_text('<!doctype html><body><script type="module" src="session.js"></script>')
    (site / "session.js").write_text(SESSION_SCRIPT)
    return site


@pytest.fixture(scope="module")
def bundle_of(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """Compiles a family's tiny model into a folder of the site, once. The folder has the family's name by default."""

    @cache
    def compiled(family: str, folder: str = "") -> Bundle:
        checkpoint = tmp_path_factory.mktemp(family)
        make_talkative(family, checkpoint)
        options = CompileOptions(quantization="f32", context=128, activations=("float32",))
        with few_kernels():
            bundle = compile_model(str(checkpoint), site / (folder or family), options)
        lighten(bundle.path, self_test=True)
        return bundle

    return compiled


# Windows are shorter than a page. Phi-3's context requires its long rotation.
# test_tables_in_store.py runs Gemma 4 with its windows, test_demo_tokens.py a dense model, the tests below a mixture
# and a recurrent model.
@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["gemma3_text", "gemma4_text", "phi3_long", "qwen3_moe", "qwen3_5_text", "lfm2"])
def test_numpy_and_chromium_agree(family: str, site: Path, browser: Browser, bundle_of: Callable[..., Bundle]) -> None:
    bundle = bundle_of(family)
    expected = list(generate(ReferenceRunner(bundle), TOKENS, MAX_TOKENS, Sampler()))
    assert len(expected) == MAX_TOKENS
    # An answer that repeats one token would reveal few errors.
    assert len(set(expected)) > MAX_TOKENS // 4
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        found, state = page.evaluate(SCRIPT, [f"./{family}/", TOKENS, MAX_TOKENS])
    page.close()
    assert (found, state) == (expected, "passed")


# test_engine.py has a dense model and sampled tokens.
@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_moe", "qwen3_5_text"])
def test_tokens_are_the_same_whatever_the_chunk_of_prompts_is(
    family: str, site: Path, browser: Browser, bundle_of: Callable[..., Bundle]
) -> None:
    """Of layers with windows, experts, or states, which the device computes in chunks of its own."""
    prompt = [(token + index) % 256 for index, token in enumerate((TOKENS * 100)[:100])]
    expected = list(generate(ReferenceRunner(bundle_of(family)), prompt, DRAFTED_TOKENS, Sampler()))
    chunks = [5, 64, 100]
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        loads = [{"prefillChunk": chunk} for chunk in chunks]
        found = page.evaluate(EXPERTS_SCRIPT, [f"./{family}/", prompt, DRAFTED_TOKENS, loads])
    page.close()
    assert [each["prefillChunk"] for each in found] == chunks
    assert [each["ids"] for each in found] == [expected] * len(chunks)


@pytest.mark.exhaustive
def test_drafts_of_any_quality_leave_a_recurrent_models_tokens_as_they_are(
    site: Path, browser: Browser, bundle_of: Callable[..., Bundle]
) -> None:
    """The draft is the model itself, which has states to go back to, or another one, whose guesses are refused. The
    test of heads compares sampled tokens with those of an engine without drafts.
    """
    expected = list(generate(ReferenceRunner(bundle_of("qwen3_5_text")), TOKENS, DRAFTED_TOKENS, Sampler()))
    shutil.copytree(page_bundle(), site / "other")
    lighten(site / "other")
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        right, wrong = (
            page.evaluate(DRAFT_SCRIPT, ["./qwen3_5_text/", draft, TOKENS, DRAFTED_TOKENS])
            for draft in ("./qwen3_5_text/", "./other/")
        )
    page.close()
    assert right[0][0] == expected
    assert wrong[0] == right[0]
    assert right[2] > 0.9 * right[1] > 0
    assert wrong[2] < 0.5 * wrong[1]


# web/test/engine/speculation.test.ts has both with states, windows and errors, load_drafts.test.ts drafts on a device,
# and targets/test_architectures.py their kernels.
@pytest.mark.parametrize(
    ("name", "drafts"),
    [
        pytest.param("heads", ("heads",), marks=pytest.mark.exhaustive),
        # Sampled tokens are those without drafts.
        pytest.param("heads", ("heads", None), marks=pytest.mark.exhaustive),
        pytest.param("assisted", ("heads",), marks=pytest.mark.exhaustive),
    ],
)
def test_models_draft_their_own_tokens_with_heads_or_an_assistant(
    name: str, drafts: Sequence[str | None], site: Path, browser: Browser, tmp_path: Path
) -> None:
    """The model with heads has states to go back to; its heads read rows of pages that it gave back. That with an
    assistant has layers with windows, whose keys and values the assistant reads. Some guesses are right, since layers
    add little to a row.
    """
    if name == "heads":
        DraftHeads(tmp_path / "checkpoint", agree=0.01)
    else:
        DraftAssistant(tmp_path, agree=0.01, layers=("sliding_attention", "full_attention"))
    assistant = None if name == "heads" else str(tmp_path / "assistant")
    options = CompileOptions(quantization="f32", context=128, activations=("float32",), assistant=assistant)
    with few_kernels():
        bundle = compile_model(str(tmp_path / "checkpoint"), site / tmp_path.name, options)
    lighten(bundle.path, self_test=False)
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        (answers, drafted, accepted), *plain = (
            page.evaluate(DRAFT_SCRIPT, [f"./{tmp_path.name}/", draft, TOKENS, DRAFTED_TOKENS]) for draft in drafts
        )
    page.close()
    assert answers[0] == list(generate(ReferenceRunner(bundle), TOKENS, DRAFTED_TOKENS, Sampler()))
    assert drafted > accepted > 0
    assert plain == [[answers, 0, 0]] * (len(drafts) - 1)


# Each of the other loads differs from one of the usual ones in the number of experts that are held, or in the drafts.
@pytest.mark.parametrize(
    ("held", "drafts"),
    [
        ((2,), ()),
        pytest.param((2, 3, 7, 8), ("./split_mixture/", "ngram"), marks=pytest.mark.exhaustive),
    ],
    ids=["usual", "more"],
)
def test_a_mixture_generates_the_same_tokens_whatever_part_of_its_experts_is_on_the_device(
    held: Sequence[int],
    drafts: Sequence[str],
    site: Path,
    browser: Browser,
    bundle_of: Callable[..., Bundle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its experts, embedding, head and attention's projections exceed a binding, so each is computed in parts."""
    monkeypatch.setattr(lower, "MAX_BINDING_BYTES", 80_000)
    bundle = bundle_of("qwen3_moe", "split_mixture")
    for matrix in ("embed_tokens.weight", "self_attn.qkv_proj.weight", "experts.down.weight", "lm_head.weight"):
        assert any(f"{matrix}.part1" in name for name in bundle.manifest.weights)
    experts = bundle.manifest.spec.experts
    assert experts is not None
    weights = bundle.manifest.weights
    sizes = [sum(plane.size for plane in weights[name].planes) for name in bundle.manifest.expert_weights]
    of_one = sum(sizes) // experts.number
    # Those that a token chooses, some more, and all; and as few with drafts, which choose more in a step.
    assert held[0] == experts.chosen
    loads: list[dict[str, Any]] = [{"expertMemory": of_one * count} for count in held]
    # The self-test takes as long as the rest of a load.
    if drafts:
        loads[0]["selfTest"] = "always"
    drafting = [{"expertMemory": of_one * held[0], "draft": draft} for draft in drafts]
    expected = list(generate(ReferenceRunner(bundle), TOKENS, DRAFTED_TOKENS, Sampler()))
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        found = page.evaluate(EXPERTS_SCRIPT, ["./split_mixture/", TOKENS, DRAFTED_TOKENS, [*loads, *drafting]])
    page.close()
    assert [each["ids"] for each in found] == [expected] * len(found)
    states = ["passed" if drafts else "untested"] + ["untested"] * (len(found) - 1)
    assert [each["selfTest"]["state"] for each in found] == states
    parts = [each for each, count in zip(found, held, strict=False) if count < experts.number]
    if drafts:
        whole, *drafted = found[len(parts) :]
        assert whole["experts"] is None
        # All experts of the draft are on the device.
        assert drafted[0]["weightBytes"] == whole["weightBytes"] + parts[0]["weightBytes"]
        assert drafted[0]["acceptedTokens"] == drafted[0]["draftedTokens"] > 0
        assert drafted[0]["steps"] < parts[0]["steps"]
        assert all(each["experts"]["reads"] > 0 for each in drafted)
        for count, each in zip(held, parts, strict=False):
            assert each["weightBytes"] == whole["weightBytes"] - of_one * (experts.number - count)
    reads = []
    for each in parts:
        counts = each["experts"]
        assert counts["bytesRead"] == counts["reads"] * of_one
        assert counts["hits"] > 0
        reads.append(counts["reads"])
    assert reads == sorted(set(reads), reverse=True)
    assert reads[-1] > experts.chosen


def test_clones_and_saved_sessions_go_on_from_the_states_of_a_recurrent_model(
    site: Path, browser: Browser, bundle_of: Callable[..., Bundle]
) -> None:
    bundle = bundle_of("qwen3_5_text")
    context = browser.new_context()
    with serve(site) as url:
        first, second = (open_session_page(context, url) for _ in range(2))
        begin = """async () => {
            const session = window.engine.createSession();
            const question = "a question whose state is not one of a page's border";
            // The answer's one token is not computed, so the text that it becomes does not matter.
            const started = await window.ask(session, question, 1);
            await session.save("kept");
            const fork = session.clone();
            const answers = await Promise.all([
                window.ask(session, "go on", 8),
                window.ask(fork, "something else", 8),
            ]);
            return [started, ...answers];
        }"""
        started, *answers = first.evaluate(begin)
        restore = """async () => {
            const session = window.engine.createSession();
            await session.restore("kept");
            return window.ask(session, "go on", 8);
        }"""
        answers.append(second.evaluate(restore))
    context.close()
    assert started["promptTokens"] % bundle.manifest.page_size > 0
    tokenizer = Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    for answer in answers:
        prompt = tokenizer.encode("<s>" + answer["prompt"], add_special_tokens=False).ids
        assert answer["ids"] == list(generate(ReferenceRunner(bundle), prompt, 8, Sampler()))
        # Nothing of the first question is computed again.
        assert answer["cachedTokens"] == started["promptTokens"]
    assert answers[0]["ids"] == answers[2]["ids"] != answers[1]["ids"]


def open_session_page(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(f"{url}session.html")
    page.wait_for_selector("body[data-state=ready]", state="attached")
    return page


@pytest.mark.exhaustive
def test_numpy_and_chromium_agree_on_a_gguf_file_of_k_blocks(site: Path, browser: Browser, tmp_path: Path) -> None:
    types = {"attn_v": Type.Q6_K, "ffn_down": Type.Q5_K, "token_embd": Type.Q3_K, "": Type.Q4_K}
    path, _ = make_gguf(
        "llama", tmp_path, lambda name: next(kind for part, kind in types.items() if part in name), WIDER
    )
    with few_kernels():
        bundle = compile_model(str(path), site / "gguf", CompileOptions(context=128, activations=("float32",)))
    assert {weight.quantization for weight in bundle.manifest.weights.values() if weight.quantization} >= {
        "q6g16_i8",
        "q5g32b_i8",
        "q4g32b_i8",
    }
    expected = list(generate(ReferenceRunner(bundle), TOKENS, 16, Sampler()))
    lighten(bundle.path, self_test=True)
    page = browser.new_page()
    with serve(site) as url:
        page.goto(url)
        assert page.evaluate(SCRIPT, ["./gguf/", TOKENS, 16]) == [expected, "passed"]
    page.close()
