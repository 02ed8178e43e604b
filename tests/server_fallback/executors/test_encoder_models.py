"""Real models of several kinds in one process: a reranker, an embedding model and one that chats, on the CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from answers import all_chunks
from light_bundle import few_kernels, one_compilation
from tiny_encoders import logits_of, make_encoder
from tokenizers import Tokenizer as Backend
from tokenizers import processors
from tolerances import F32

from nearfar.compiler.pipeline.compile import CompileOptions, compile_model
from nearfar.compiler.runtime.text.tokenizer import Tokenizer
from nearfar.compiler.runtime.text.tokenizer_files import TokenizerFiles
from nearfar.server_fallback.engine.batching import Batching
from nearfar.server_fallback.executors.executor import Call, Ranks
from nearfar.server_fallback.executors.local_opener import LocalOpener
from nearfar.server_fallback.executors.local_options import LocalOptions
from nearfar.server_fallback.executors.registry import Registry
from nearfar.server_fallback.schema.completions import CompletionRequest
from nearfar.server_fallback.schema.embeddings import EmbeddingRequest
from nearfar.server_fallback.schema.models import LoadRequest
from nearfar.server_fallback.schema.score import ScoreRequest

CompileTiny = Callable[..., Path]
CALL = Call("1")


def write_pair_tokenizer(folder: Path) -> None:
    """Let the tokenizer mark pairs as BERT's does."""
    path = str(folder / "tokenizer.json")
    tokenizer = Backend.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 256), ("</s>", 257)]
    )
    tokenizer.save(path)


def test_models_of_several_kinds_answer_while_others_load_and_unload(compile_base: CompileTiny, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    theirs = make_encoder("bert", "ForSequenceClassification", checkpoint, num_labels=1)
    write_pair_tokenizer(checkpoint)
    options = CompileOptions(target="cpu", quantization="f32", context=64)
    with one_compilation(), few_kernels():
        bundle = compile_model(str(checkpoint), tmp_path / "bundle", options).path
    # The last one is that of `tests/targets/test_runners.py`.
    embedding = compile_base("embedding", "q4f16", target="cpu", activations=("float32",))
    chat = compile_base("qwen3", "q4f16", target="cpu", context=320, activations=("float32",))
    texts = ["a passage", "b", "another passage that is longer"]

    async def work() -> None:
        small = LocalOptions(max_sequences=4, kv_memory_bytes=1 << 24, batching=Batching(max_tokens=80))
        registry = Registry(LocalOpener(small))
        try:
            for model, name in ((bundle, "rank"), (embedding, "embed")):
                await registry.load(LoadRequest(model=str(model), name=name))
            assert [registry.task(name) for name in ("rank", "embed")] == ["rerank", "embed"]
            ranker, embedder = await registry.executor("rank"), await registry.executor("embed")
            assert isinstance(ranker, Ranks)
            request = ScoreRequest(model="rank", text_1="query", text_2=texts)
            scoring = [asyncio.ensure_future(ranker.score(request, CALL)) for _ in range(8)]
            await registry.load(LoadRequest(model=str(chat), name="chat"))
            prompt = CompletionRequest(model="chat", prompt=[5, 6, 7], max_tokens=3)
            chunks = await all_chunks(await registry.executor("chat"), prompt, CALL)
            assert chunks[-1].usage is not None
            await registry.unload("chat")
            tokenizer = Tokenizer(TokenizerFiles.at(checkpoint / "tokenizer.json"))
            pairs = [tokenizer.encode_shortened("query", text, 64) for text in texts]
            assert pairs[1].token_types == [0, 0, 0, 0, 0, 0, 0, 1, 1]
            expected = [1 / (1 + np.exp(-logits_of(theirs, pair.ids, pair.token_types)[0])) for pair in pairs]
            for answer in await asyncio.gather(*scoring):
                assert [each.score for each in answer.data] == pytest.approx(expected, rel=F32, abs=F32)
            batches = registry.state("rank").engine.batches
            assert batches is not None
            assert batches.texts.total == 24
            assert batches.tokens.total / batches.tokens.count > 20
            vectors = await embedder.embed(EmbeddingRequest(model="embed", input=["ab", "cd"]), CALL)
            assert [np.linalg.norm(each.embedding) for each in vectors.data] == pytest.approx([1, 1], rel=1e-5)
        finally:
            await registry.close(0.0)

    asyncio.run(work())
