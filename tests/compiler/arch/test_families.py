"""Unknown and unsupported model types: the error names their kind and the nearest family."""

from __future__ import annotations

import pytest

from nearfar.compiler import arch
from nearfar.compiler.arch import families, write_model_types
from nearfar.compiler.formats.multimodal import MODEL_TYPES
from nearfar.compiler.runtime.errors import UnsupportedModel

# The version of transformers that the list was written with.
WRITTEN_WITH = "5.24.0"


@pytest.mark.parametrize("name", ["mamba", "", "decoder", "..errors", "llama "])
def test_an_unknown_model_type_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        arch.by_model_type(name)
    assert caught.value.message.startswith(
        f"config.json: model_type {name!r} is not supported; supported: "
        f"{', '.join((*arch.SUPPORTED, *arch.ENCODERS, *arch.LISTENING, *arch.CTC))}. "
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "internlm2",
            r"It is a decoder of text, and nearfar \S+ knows this family but does not compile it; the nearest ",
        ),
        (
            "internlm3",
            r"the nearest family that it compiles is 'llama'\. To request it, open an issue in the project's",
        ),
        ("mixtral", r"It is a mixture of experts, .* the nearest family that it compiles is 'mistral'\."),
        (
            "deepseek_v3",
            r"does not compile it: its keys and values are stored compressed \(latent attention\), .* is 'llama'",
        ),
        ("zamba2", r"with recurrent states, .* does not compile it, nor one near it\. To request it, open an issue "),
        ("qwen3_next", "with recurrent states, .* is 'qwen3_moe'"),
        ("mamba", "with recurrent states, .* is 'mamba2'"),
        ("deberta", "It is an encoder of text, which generates none, .* is 'deberta-v2'"),
        ("roberta-prelayernorm", "an encoder of text, .* is 'roberta'"),
        ("t5", r"It is an encoder with a decoder, .*, nor one near it\."),
        ("qwen3_vl_moe", "It is a model of images beside text, .* is the text model of 'qwen3_vl'"),
        ("gemma3n", "images beside text, .* is the text model of 'gemma3'"),
        ("hubert", "It is a model of sound or speech, .*, nor one near it"),
        ("dinov2", r"It is a model of images, .*, nor one near it"),
        ("patchtst", "It is a model of time series"),
        ("clap_text_model", "It is a part of a larger model"),
        # Only their repositories' own code computes these.
        ("chatglm", "It is a decoder of text, .* is 'glm4'"),
        ("kimi_k2", "It is a mixture of experts, .* is 'llama'"),
        ("jina_bert", "It is an encoder of text, which generates none, .* is 'bert'"),
        ("xverse", "It is a decoder of text, .* is 'llama'"),
        ("phi-msft", "It is a decoder of text, .* is 'llama'"),
        ("moondream1", "It is a model of images beside text, .* is the text model of 'llava'"),
        ("internvl_chat", "images beside text, .* is the text model of 'internvl'"),
        ("minicpmv", "images beside text, .* is the text model of 'llava'"),
        ("rwkv7", r"with recurrent states, .*, nor one near it\."),
        ("stablelm_epoch", "It is a decoder of text, .* is 'stablelm'"),
        ("phi3small", "is 'phi3'"),
    ],
)
def test_a_real_family_is_named_with_its_kind_and_the_nearest_one(name: str, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message) as caught:
        arch.by_model_type(name)
    assert "did you mean" not in caught.value.message
    assert "Correct the file" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qwenn3", r"known; did you mean 'qwen3'\? Correct the file, or, if the family is newer than nearfar"),
        ("Llama", "known; did you mean 'llama'"),
        ("xyzzy", r"No family of that name is known\. Correct the file, or"),
    ],
)
def test_an_unknown_name_may_be_mistyped(name: str, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        arch.by_model_type(name)


def test_reasons_are_those_of_families_that_do_not_compile() -> None:
    assert families.REASONS.keys() <= families.known_types().keys()


def test_every_model_type_of_transformers_is_known() -> None:
    import transformers

    compiled = {*arch.SUPPORTED, *arch.ENCODERS, *arch.LISTENING, *arch.CTC, *MODEL_TYPES}
    listed = families.known_types()
    assert not listed.keys() & compiled
    unknown = sorted(transformers.CONFIG_MAPPING.keys() - listed.keys() - compiled)
    # A later transformers may know more of them.
    assert not unknown or transformers.__version__ != WRITTEN_WITH
    assert {kind for kind, _ in listed.values()} == families.KINDS.keys()
    assert {base for _, base in listed.values()} - {None} <= compiled


def test_the_list_is_what_the_script_writes() -> None:
    import transformers

    if transformers.__version__ != WRITTEN_WITH:
        pytest.skip(f"transformers is {transformers.__version__}; the list was written with {WRITTEN_WITH}")
    written = write_model_types.all_types()
    assert {name: tuple(entry) for name, entry in families.known_types().items()} == written
