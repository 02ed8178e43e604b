"""Unknown and unsupported model types: the error names the nearest family."""

from __future__ import annotations

import pytest

from nearfar.compiler import arch
from nearfar.compiler.arch import families
from nearfar.compiler.errors import UnsupportedModel


@pytest.mark.parametrize("name", ["mamba2", "", "decoder", "..errors", "llama "])
def test_an_unknown_model_type_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        arch.by_model_type(name)
    assert caught.value.message.startswith(
        f"config.json: model_type {name!r} is not supported; supported: "
        f"{', '.join((*arch.SUPPORTED, *arch.ENCODERS))}. "
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "internlm3",
            r"nearfar \S+ knows this family but does not compile it yet; "
            r"the nearest family that it compiles is 'llama'\. To request",
        ),
        ("qwen3_next", "the nearest family that it compiles is 'qwen3'"),
        (
            "mamba2",
            r"and nearfar \S+ does not compile such families yet\. To request it, open an issue in the project's issue "
            r"tracker$",
        ),
        ("deberta-v2", "It is an encoder, which generates no text, and nearfar"),
        (
            "qwenn3",
            r"No family of that name is known; did you mean 'qwen3'\? Correct the file, or, if the family is newer "
            r"than nearfar",
        ),
        ("Llama", "No family of that name is known; did you mean 'llama'"),
        ("xyzzy", r"No family of that name is known\. Correct the file, or"),
    ],
)
def test_the_error_distinguishes_a_known_family_from_an_unknown_name(name: str, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        arch.by_model_type(name)


def test_no_supported_family_is_listed_as_unsupported() -> None:
    listed = [each for names in (*families.DECODERS.values(), *families.OTHERS.values()) for each in names]
    assert not set(listed) & set(arch.SUPPORTED)
    assert len(listed) == len(set(listed))
    assert families.DECODERS.keys() <= set(arch.SUPPORTED)
