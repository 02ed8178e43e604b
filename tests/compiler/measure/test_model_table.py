"""The published models: their number of parameters as transformers counts them, and the README's table."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from nearfar.compiler.arch import SUPPORTED, encoder_of
from nearfar.compiler.cli.models import markdown
from nearfar.compiler.formats.huggingface import read_spec
from nearfar.compiler.ir.tasks import EmbeddingSpec
from nearfar.compiler.measure.model_table import Model, measured, model_table, published

# Families that transformers lacks, and those that have the same parameters.
SAME_PARAMETERS = {"mimo": "qwen2", "minicpm": "llama", "new": "gte"}
# Buffers that graphs read.
BUFFERS = ("layer_scalar", "expert_bias", "act_fn.beta", "act_fn.eps")
ENCODERS = dict(published())["qwen3-0.6b"].parent / "encoders"
README = Path(__file__).parents[3] / "README.md"


@pytest.fixture(scope="module")
def smallest() -> dict[str, Model]:
    """The smallest model of each family."""
    return {model.model_type: model for model in reversed(model_table())}


def test_every_family_but_those_of_a_few_large_models_is_tried_at_a_published_size() -> None:
    tried = {read_spec(path).model_type for _, path in published()}
    assert set(SUPPORTED) - tried == {"embedding_gemma2_text", "ministral", "openai_privacy_filter"}


# Of the whole table, for which 73 models are laid out. tests/compiler/arch compares tiny models of all families with
# transformers, which have every parameter, and tests/compiler/passes has the steps.
@pytest.mark.exhaustive
def test_parameters_are_those_of_transformers(smallest: dict[str, Model]) -> None:
    import torch
    import transformers

    configs = dict(published())
    for model in smallest.values():
        values = json.loads(configs[model.name].read_text())
        text = values.get("text_config", values)
        name = SAME_PARAMETERS.get(text["model_type"], text["model_type"])
        config = transformers.CONFIG_MAPPING[name].from_dict({**text, "model_type": name})
        with torch.device("meta"):
            expected = transformers.AutoModelForCausalLM.from_config(config)
        scalars = [buffer for name, buffer in expected.named_buffers() if name.endswith(BUFFERS)]
        count = sum(math.prod(each.shape) for each in (*expected.parameters(), *scalars))
        if name == "olmo":
            # The ones of its norms, which have no factors.
            count += (2 * config.num_hidden_layers + 1) * config.hidden_size
        assert model.parameters == count, model.name


@pytest.mark.parametrize("path", sorted(ENCODERS.glob("*.json")), ids=lambda path: path.stem)
def test_parameters_of_encoders_are_those_of_transformers(path: Path) -> None:
    import torch
    import transformers

    values = json.loads(path.read_text())
    # transformers 5.24 does not know GTE's scaling, which has no parameters.
    values.pop("rope_scaling", None)
    spec = read_spec(path)
    module = encoder_of(spec.model_type)
    assert module is not None
    graph = module.encode(spec, 512, EmbeddingSpec("mean", normalize=False, size=spec.hidden_size))
    name = SAME_PARAMETERS.get(values["model_type"], values["model_type"])
    config = transformers.CONFIG_MAPPING[name].from_dict({**values, "model_type": name})
    with torch.device("meta"):
        expected = transformers.AutoModel.from_config(config)
    # A vector of each distance is made of the tables of distances; no task reads the pooler of these.
    made = re.compile(r"pooler\.|encoder\.(?:rel_embeddings|relative_attention_bias|LayerNorm)\.")
    sizes = [each.shape for name, each in expected.named_parameters() if not made.match(name)]
    own = [each.shape for name, each in graph.parameters.items() if "distance_" not in name]
    assert sum(map(math.prod, own)) == sum(map(math.prod, sizes))


@pytest.mark.exhaustive
def test_steps_are_five_a_layer_with_some_exceptions(smallest: dict[str, Model]) -> None:
    steps = {family: model.steps_per_token // model.num_layers for family, model in smallest.items()}
    # Gemma 4's layers have a second embedding, and 20 of 35 rotate queries in a separate step. Seed-OSS's gate and
    # inner projection together are larger than a binding, and so are the gates of the experts of Qwen3 and gpt-oss. A
    # layer with experts has eight steps: three more choose experts, project with them and combine their results.
    experts = {"gpt_oss": 9, "granitemoe": 8, "olmoe": 8, "qwen3_moe": 9}
    # Layers of Mamba-2 have six steps, or four without a feed-forward; Falcon-H1's have attention, too.
    states = {"granitemoehybrid": 6, "falcon_h1": 9, "lfm2_moe": 8, "mamba2": 4}
    others = {"gemma4_text": 7, "seed_oss": 6, **experts, **states}
    assert steps == {family: others.get(family, 5) for family in steps}


def test_keys_and_values_of_gemma_3_at_32768_tokens_are_a_quarter_of_full_attentions_or_less() -> None:
    from nearfar.compiler.measure.model_table import LONG_CONTEXT

    spec = read_spec(dict(published())["gemma-3-1b-it"])
    full = LONG_CONTEXT * spec.num_layers * 2 * spec.num_kv_heads * spec.head_dim * 2
    assert measured("gemma-3-1b-it", spec).kv_bytes <= full / 4


@pytest.mark.exhaustive
def test_the_readme_has_the_table() -> None:
    table = markdown(model_table())
    assert table in README.read_text(), f"put the output of `nearfar models --markdown` into README.md:\n{table}"
