"""Models that see pictures in ONNX Runtime and Transformers.js, as their users run them: the features of the tower's
graph among the rows of the graph of embeddings, from which the decoder's graph continues.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from case_selection import usual_or_exhaustive
from hearing_families import make_hearing
from image_families import marker_id, pattern
from onnx_bundles import export_folder
from onnx_cases import check_graph
from onnx_session import Session, image_features, open_graph
from tolerances import F32, INT8, relative_error
from vision_arguments import QWEN, arguments_of
from vision_families import FAMILIES, Expected, greedy_answer, make_vision

from nearfar.compiler.bundle.folder import ExportBundle, open_any
from nearfar.compiler.cli.trial import find_trial
from nearfar.compiler.formats import load
from nearfar.compiler.ir.graph import Node
from nearfar.compiler.measure.dry_run import dry_run
from nearfar.compiler.pipeline.compile import CompileOptions
from nearfar.compiler.pipeline.export import export_model
from nearfar.compiler.runtime.errors import RequestError, UnsupportedModel
from nearfar.compiler.runtime.images.patches import prepare_image
from nearfar.compiler.runtime.placed_features import rope_positions_between
from nearfar.compiler.runtime.runner import Limits
from nearfar.targets.onnx.decoder import form_of
from nearfar.targets.onnx.runner import check_machine, open_runner

# ONNX Runtime's attention needs heads of a multiple of 8 elements.
GEMMA4 = {"head_dim": 16}
TEXT = {
    "lfm2_vl": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{name: GEMMA4 for name in FAMILIES if name.startswith("gemma4")},
}
SCRIPT = Path(__file__).parent / "transformers_js_images.mjs"
COUNT = 8
# Texts with the mark of a picture, by the families that Transformers.js knows.
# A picture that the processors of Qwen and Gemma 4 do not resize, which Transformers.js does with black edges.
UNCHANGED = (32, 24)
QWEN_PROMPT = "What is <|vision_start|><|image_pad|><|vision_end|>?"
PROMPTS = {
    "smolvlm": "<image>",
    "lfm2_vl": "<image>",
    "gemma3": "What is <start_of_image>?",
    **dict.fromkeys(QWEN, QWEN_PROMPT),
    **dict.fromkeys(("gemma4", "gemma4_bounded", "gemma4_unified"), "What is <|image|>?"),
}
Arrays = Mapping[str, npt.NDArray[Any]]


export = partial(export_folder, context=256)


@dataclass(frozen=True, slots=True)
class Case:
    checkpoint: Path
    bundle: Path
    expected: Expected
    inputs: Arrays
    placeholder: int

    @property
    def features(self) -> npt.NDArray[np.float32]:
        return np.concatenate(self.expected.features)


def make_case(family: str, folder: Path) -> Case:
    expected = make_vision(family, folder / "checkpoint", **TEXT.get(family.removesuffix("_plain"), {}))
    export(folder / "checkpoint", folder / "bundle", quantization="f32")
    inputs = arrays_of(folder / "checkpoint", expected)
    return Case(folder / "checkpoint", folder / "bundle", expected, inputs, marker_id(FAMILIES[family].placeholder))


def arrays_of(checkpoint: Path, expected: Expected) -> dict[str, npt.NDArray[Any]]:
    """The pictures as transformers' processor makes them, by the names of Transformers.js. All pixels are visible."""
    spec = load(str(checkpoint)).images
    assert spec is not None
    config = SimpleNamespace(model_type=json.loads((checkpoint / "config.json").read_text())["model_type"])
    arguments = arguments_of(SimpleNamespace(config=config), spec, expected.images)
    names = {"image_position_ids": "pixel_position_ids"}
    found = {names.get(name, name): each.numpy() for name, each in arguments.items()}
    if found["pixel_values"].ndim == 5:
        batch, images, _, height, width = found["pixel_values"].shape
        found["pixel_attention_mask"] = np.ones((batch, images, height, width), bool)
    if "pixel_position_ids" in found:
        # Row by row, as processors make them, with padding behind.
        places = found["pixel_position_ids"]
        order = np.argsort(np.where(places[..., 0] < 0, 10**6, 100 * places[..., 1] + places[..., 0]), kind="stable")
        found = {name: np.take_along_axis(each, order[..., None], axis=1) for name, each in found.items()}
    return found


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("smolvlm", tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def lfm2_vl(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case("lfm2_vl", tmp_path_factory.mktemp("lfm2_vl"))


@pytest.mark.parametrize("family", [*FAMILIES])
def test_features_and_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    case = make_case(family, tmp_path)
    check_case(case)
    # onnx infers no shapes behind the norms of Gemma 4's tower.
    for graph in ("embed_tokens", *["vision_encoder"] * (not family.startswith("gemma4"))):
        check_graph(case.bundle / f"onnx/{graph}.onnx")


def test_the_tokens_of_a_picture_see_all_of_it(tmp_path: Path) -> None:
    """And without the marks of features, only those before them."""
    case = make_case("gemma3", tmp_path)
    session = Session(case.bundle, decoder="decoder_model_merged")
    features = image_features(case.bundle, case.inputs)
    assert features[:, -1].tolist() == [1] * len(features)
    rows = session.embeddings([case.expected.token_ids], features, case.placeholder)
    marked, rows[..., -1] = session.run(rows), 0
    session.cache = {}
    assert relative_error(session.run(rows), marked) > 100 * F32


def test_tiles_of_any_size_have_the_features_of_transformers(lfm2_vl: Case) -> None:
    check_case(lfm2_vl)
    # As Transformers.js pads them.
    values, mask = lfm2_vl.inputs["pixel_values"], lfm2_vl.inputs["pixel_attention_mask"]
    padded = {
        **lfm2_vl.inputs,
        "pixel_values": np.pad(values, ((0, 0), (0, 7), (0, 0)), constant_values=3),
        "pixel_attention_mask": np.pad(mask, ((0, 0), (0, 7))),
    }
    features = image_features(lfm2_vl.bundle, padded)
    assert relative_error(features, lfm2_vl.features) < F32


def check_case(case: Case) -> None:
    """Two pictures: the features, the logits of the prompt at once, and of its last tokens one by one."""
    expected = case.expected
    features = image_features(case.bundle, case.inputs)
    # A mark may follow the features.
    assert relative_error(features[:, : case.features.shape[1]], case.features) < F32
    length = len(expected.token_ids)
    for start in (length, length - 3):
        session = Session(case.bundle, decoder="decoder_model_merged")
        rows = session.embeddings([expected.token_ids], features, case.placeholder)
        cuts = [(0, start), *((each, each + 1) for each in range(start, length))]
        found = [session.run(rows[:, slice(*cut)], more=further_inputs(case, *cut)) for cut in cuts]
        assert relative_error(np.concatenate(found), expected.logits[start - 1 :]) < F32


def further_inputs(case: Case, start: int, stop: int) -> dict[str, npt.NDArray[Any]]:
    """The positions of tokens on three axes, and the rows of the tables of layers, if the model has them."""
    if (table := open_graph(case.bundle, "embed_tokens")).get_outputs()[1:]:
        (rows,) = table.run(["per_layer_inputs"], {"input_ids": np.array([case.expected.token_ids])})
        return {"per_layer_inputs": np.asarray(rows)[:, start:stop]}
    grids = case.inputs.get("image_grid_thw")
    if grids is None:
        return {}
    places = zip(case.expected.places, (grids[:, 1:] // 2).tolist(), strict=True)
    pictures = [(place, rows * columns, columns) for place, (rows, columns) in places]
    found = rope_positions_between(pictures, start, stop)
    return {"position_ids": found.T[:, None].astype(np.int64)}


def test_masked_pixels_and_tiles_of_padding_are_those_of_transformers(smolvlm: Case) -> None:
    import torch
    import transformers

    pixels = smolvlm.inputs["pixel_values"].copy()
    mask = np.ones_like(smolvlm.inputs["pixel_attention_mask"])
    # A tile of padding, and tiles of which fewer rows and columns, or part of a patch, are visible.
    pixels[0, 1] = 0
    mask[0, 2, 29:], mask[0, 3, :, 23:], mask[0, 4, 15:, 36:] = False, False, False
    config = transformers.AutoConfig.from_pretrained(smolvlm.checkpoint, attn_implementation="eager")
    model = transformers.AutoModelForImageTextToText.from_pretrained(smolvlm.checkpoint, config=config).float().eval()
    with torch.no_grad():
        arguments = {"pixel_values": torch.tensor(pixels), "pixel_attention_mask": torch.tensor(mask)}
        rows = torch.cat(list(model.model.get_image_features(**arguments).pooler_output)).numpy()
    found = image_features(smolvlm.bundle, {"pixel_values": pixels, "pixel_attention_mask": mask})
    assert relative_error(found, rows) < F32
    assert relative_error(found[4:8], image_features(smolvlm.bundle, smolvlm.inputs)[8:12]) > 100 * F32


def test_frames_of_a_patch_may_differ_if_the_model_reads_videos(tmp_path: Path) -> None:
    """Two pictures of several times, as Transformers.js prepares several pictures."""
    import torch
    import transformers

    case = make_case("qwen3_vl", tmp_path)
    grids = np.array([[2, 4, 6], [1, 2, 8]])
    pixels = np.random.default_rng(5).normal(size=(64, 96)).astype(np.float32)
    model = transformers.AutoModelForImageTextToText.from_pretrained(case.checkpoint, attn_implementation="eager")
    with torch.no_grad():
        made = model.float().model.get_image_features(torch.tensor(pixels), torch.tensor(grids))
        rows = torch.cat([torch.cat(list(each)) for each in (made.pooler_output, *made.deepstack_features)], dim=-1)
    inputs = {"pixel_values": pixels, "image_grid_thw": grids}
    assert relative_error(image_features(case.bundle, inputs), rows.numpy()) < F32
    # Frames that are prepared otherwise than pictures are not read.
    (case.checkpoint / "video_preprocessor_config.json").write_text('{"image_mean": [0.4, 0.4, 0.4]}')
    export(case.checkpoint, tmp_path / "pictures", quantization="f32")
    assert relative_error(image_features(tmp_path / "pictures", case.inputs), case.features) < F32
    with pytest.raises(Exception, match="frames_of_a_picture_must_be_equal"):
        image_features(tmp_path / "pictures", inputs)


# The others have towers and prompts of these kinds, and all of them have their features and logits above.
IN_JAVASCRIPT = ("smolvlm", "qwen3_vl", "gemma4")


@pytest.mark.parametrize("family", usual_or_exhaustive(PROMPTS, IN_JAVASCRIPT))
def test_transformers_js_loads_the_folder_and_generates_the_same_tokens(
    node: str, family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    kept = family in ("smolvlm", "lfm2_vl")
    case: Case = request.getfixturevalue(family) if kept else make_case(family, tmp_path / "case")
    expected, spec = case.expected, load(str(case.checkpoint)).images
    assert spec is not None
    sizes = FAMILIES[family].sizes
    pictures = [pattern(*size) for size in sizes]
    ids = np.array([expected.token_ids])
    if family in QWEN:
        # Transformers.js finds pictures by the token before them.
        ids[0, [place - 1 for place in expected.places]] = marker_id("<|vision_start|>")
    wanted = greedy_answer(case.checkpoint, ids[0].tolist(), pictures, COUNT)
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), **case.inputs}
    types = {"i": "int64", "b": "bool", "f": "float32"}
    names = {"pixel_position_ids": "image_position_ids"}
    content = {
        names.get(name, name): {"type": types[each.dtype.kind], "dims": each.shape, "data": each.ravel().tolist()}
        for name, each in arrays.items()
    }
    (tmp_path / "inputs.json").write_text(json.dumps(content))
    width, height = size = UNCHANGED if family.startswith(("gemma4", "qwen")) else sizes[0]
    texts = [str(case.bundle), str(tmp_path / "inputs.json"), str(COUNT), *map(str, size), PROMPTS[family]]
    command = [node, str(SCRIPT), *texts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["tokens"] == wanted
    # The folder's processor.
    grey = np.full((height, width, 3), 90, np.uint8)
    assert answer["ids"].count(case.placeholder) == sum(prepare_image(spec, grey).features)
    if kept:
        tiles = answer["pixels"][1] if family == "smolvlm" else answer["pixels"][0]
        assert tiles == len(expected.images[0].features)
    assert answer["answer"] == greedy_answer(case.checkpoint, answer["ids"], [grey], COUNT)
    assert answer["plainAnswer"] == greedy_answer(case.checkpoint, answer["plainIds"], [], COUNT)


def test_a_tower_has_8_bits_beside_a_text_model_with_4(smolvlm: Case, tmp_path: Path) -> None:
    import onnx

    export(smolvlm.checkpoint, tmp_path / "q4", quantization="q4f16")
    bits = {
        name: {attr.i for node in graph.node for attr in node.attribute if attr.name == "bits"}
        for name in ("vision_encoder", "embed_tokens", "decoder_model_merged")
        for graph in [onnx.load(tmp_path / f"q4/onnx/{name}.onnx", load_external_data=False).graph]
    }
    assert bits == {"vision_encoder": {8}, "embed_tokens": {4}, "decoder_model_merged": {4}}
    found = image_features(tmp_path / "q4", smolvlm.inputs)
    assert relative_error(found, smolvlm.features) < INT8


def test_a_dry_run_has_the_sizes_of_all_graphs(smolvlm: Case) -> None:
    options = CompileOptions(target="onnx", context=256, quantization="f32")
    sizes = dry_run(str(smolvlm.checkpoint), options).sizes
    written = [path for path in smolvlm.bundle.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert {name: size for name, size in sizes.items() if name != "manifest.json"} == {
        str(path.relative_to(smolvlm.bundle)): path.stat().st_size for path in written
    }


def test_our_runner_and_options_for_texts_refuse_pictures_by_name(smolvlm: Case, tmp_path: Path) -> None:
    bundle = open_any(smolvlm.bundle)
    assert isinstance(bundle, ExportBundle)
    for refused in (lambda: check_machine(bundle), lambda: open_runner(bundle, Limits())):
        with pytest.raises(UnsupportedModel, match="sees pictures, which nearfar's runner of ONNX bundles does not"):
            refused()
    assert " inspect " in find_trial(bundle).command
    with pytest.raises(RequestError, match=r"--kv q8: .* sees pictures"):
        export(smolvlm.checkpoint, tmp_path / "q8", kv="q8")
    export(smolvlm.checkpoint, tmp_path / "text", text_only=True)
    assert [path.name for path in (tmp_path / "text/onnx").glob("*.onnx")] == ["model.onnx"]


@pytest.mark.parametrize("family", ["gemma4", pytest.param("gemma4_unified", marks=pytest.mark.exhaustive)])
def test_a_model_that_hears_sees_alone_and_refuses_sound_by_name(family: str, node: str, tmp_path: Path) -> None:
    make_hearing(family, tmp_path / "checkpoint", **GEMMA4)
    notes: list[str] = []
    options = CompileOptions(target="onnx", context=256, quantization="f32")
    export_model(str(tmp_path / "checkpoint"), tmp_path / "bundle", options, note=notes.append)
    assert any("hears, which onnx bundles do not" in each for each in notes)
    (tmp_path / "inputs.json").write_text("{}")
    texts = [str(tmp_path / "bundle"), str(tmp_path / "inputs.json"), str(COUNT), *map(str, UNCHANGED), "<|image|>"]
    done = subprocess.run([node, str(SCRIPT), *texts], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer, grey = json.loads(done.stdout), np.full((*UNCHANGED[::-1], 3), 90, np.uint8)
    assert answer["answer"] == greedy_answer(tmp_path / "checkpoint", answer["ids"], [grey], COUNT)
    sound = {"input_features": np.zeros((1, 4, 8), np.float32), "input_features_mask": np.ones((1, 4), bool)}
    with pytest.raises(Exception, match="this_folder_reads_no_sound"):
        open_graph(tmp_path / "bundle", "audio_encoder").run(["audio_features"], sound)


def test_what_the_graphs_do_not_compute_is_refused_by_name() -> None:
    inputs = {name: name for name in ("q", "kv", "seq_starts", "positions", "page_indptr", "page_ids", "reach")}
    with pytest.raises(UnsupportedModel, match="attention with input 'reach', which has no form in --target onnx"):
        form_of(Node("attention", inputs, {"y": "y"}))
