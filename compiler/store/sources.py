"""Gets the files of a model for the store: from the Hugging Face Hub, an address, a folder, a GGUF file, a bundle, a
published site, or nearfar itself.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..bundle.file_name import require_inside
from ..bundle.folder import open_any, sha256_of
from ..bundle.manifest import MANIFEST_FILE
from ..bundle.signature import SIGNATURE_FILE, TrustedKey
from ..formats.gguf.names import label_of
from ..formats.hub import HubModel, download, hub_model, in_cache, wanted_files
from ..names import QUANTIZATIONS
from ..publish.catalog import CatalogBundle
from ..publish.fetch import fetch_unlisted
from ..publish.pull import pull
from ..runtime.errors import CheckpointError, RequestError
from .blobs import disk_bytes
from .files import DIGEST_DIGITS, FileStore
from .model import Demo, Files, HubFiles, Source, unknown_quantization
from .names import MAX_NAME, StoreName

# Called with what is done, the finished units and all units, 0 if unknown.
Progress = Callable[[str, int, int], None]
DOWNLOAD, COPY, READ = "download", "copy", "read"
# Names of the hub as its pages and Ollama write them.
_HUB_HOST = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<model>[^/]+/[^/?#]+)/?")
_MARK = re.compile(r"sha256=([0-9a-f]{64})")
GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class Acquired:
    """``name`` is the name that the model gets if its user gives none."""

    name: StoreName
    source: Source
    quantization: str | None = None


def acquire(
    model: str, files: FileStore, progress: Progress, trust: Sequence[TrustedKey] = (), *, local: bool = True
) -> Acquired:
    """``model`` is an existing path, the name of a demo, the address of a GGUF file, or a name on the hub; the last two
    and folders may have a colon and the quantization to compile with. Without ``local``, paths mean nothing, also those
    that look like names on the hub.

    Raises CheckpointError, BundleError, RequestError, OutputError and Unavailable.
    """
    from ..demo import DEMOS, MODELS

    place, quantization = with_quantization(model)
    path = _existing(place) if local else None
    if path is not None:
        return Acquired(_name_of(path.name, quantization), _copy(path, files, progress, trust), quantization)
    if place in DEMOS:
        (demo,) = (each for each in MODELS if each.name == place)
        return Acquired(_name_of(place, quantization), Demo(name=place, size_bytes=demo.size_bytes()), quantization)
    if (hosted := _HUB_HOST.fullmatch(place)) is not None:
        place = unquote(hosted["model"])
    elif place.startswith(("https://", "http://")):
        _refuse_quantization(model, local=local)
        return _of_address(place, files, progress, quantization)
    repository = hub_model(place)
    if repository is None:
        _refuse_quantization(model, local=local)
        raise CheckpointError(
            f"{model}: is neither a path, the address of a GGUF file, a name on the Hugging Face Hub (OWNER/NAME), nor "
            "a model that comes with nearfar; models of a published site need --catalog",
            model=model,
        )
    return _of_hub(repository, progress, quantization)


def with_quantization(model: str) -> tuple[str, str | None]:
    """The model without the quantization to compile with; for "Qwen/Qwen3-0.6B:q8f16" that is q8f16. Other words after
    a colon choose a GGUF file.
    """
    place, _, last = model.rpartition(":")
    return (place, last) if place and last in QUANTIZATIONS else (model, None)


def _refuse_quantization(model: str, *, local: bool) -> None:
    """Raises RequestError for an unknown quantization of a model that is known. Only on the hub may it be one of
    several GGUF files.
    """
    from ..demo import DEMOS

    place, _, last = model.rpartition(":")
    known = place in DEMOS or place.lower().endswith(GGUF) or (local and _existing(place) is not None)
    if place and known:
        raise unknown_quantization(last, f"{model}: ")


def acquire_bundle(
    entry: CatalogBundle, address: str, files: FileStore, trust: Sequence[TrustedKey], progress: Progress
) -> Files:
    """Download a bundle of a published site. Raises as `pull`."""
    folder = f"{entry.manifest_sha256[:DIGEST_DIGITS]}/{entry.folder.replace('/', '-')}"
    if not (files.folder / folder / MANIFEST_FILE).is_file():
        pull(entry, address, files.folder / folder, trust, partial(progress, DOWNLOAD), blobs=files.blobs)
    elif trust:
        open_any(files.folder / folder, trust)
    return files.listed(folder)


def _copy(path: Path, files: FileStore, progress: Progress, trust: Sequence[TrustedKey]) -> Files:
    shown = partial(progress, COPY)
    shown(0, 0)
    if path.is_file():
        if path.suffix.lower() != GGUF:
            raise CheckpointError(
                f"{path}: is a file, but not a GGUF file; pass the folder of the model", model=str(path)
            )
        parts = parts_of(path)
        require_inside(path.parent, [each.name for each in parts if each != path])
        return files.copy({each.name: each for each in parts}, plain_name(path.stem), file=path.name, progress=shown)
    if (path / MANIFEST_FILE).is_file():
        bundle = open_any(path, trust)
        bundle.verify()
        names = [name for name, _ in bundle.hashes()]
        names += [MANIFEST_FILE, *([SIGNATURE_FILE] if (path / SIGNATURE_FILE).is_file() else [])]
        return files.copy({name: path / name for name in names}, plain_name(path.name), progress=shown)
    names = wanted_files([each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file()])
    if not any(Path(name).name == name and name.endswith(".json") for name in names):
        ggufs = [each for each in path.glob("*") if each.suffix.lower() == GGUF]
        if len(ggufs) == 1:
            require_inside(path, [ggufs[0].name])
            return _copy(ggufs[0], files, progress, trust)
        raise CheckpointError(
            f"{path}: has neither config.json nor exactly one GGUF file; pass the folder or the file of a model",
            model=str(path),
        )
    require_inside(path, names)
    return files.copy({name: path / name for name in names}, plain_name(path.name), progress=shown)


def _of_hub(repository: HubModel, progress: Progress, quantization: str | None) -> Acquired:
    there = in_cache(repository)
    path = download(repository, partial(progress, DOWNLOAD))
    folder = path if path.is_dir() else path.parent
    tag = quantization
    if repository.choice is not None:
        tag = label_of(repository.choice) or Path(repository.choice).stem
    size = sum(each.stat().st_size for each in ([path] if path.is_file() else folder.rglob("*")) if each.is_file())
    model = repository.repository + ("" if repository.choice is None else f":{repository.choice}")
    source = HubFiles(model=model, path=str(path), size_bytes=size, fetched=not there)
    return Acquired(_name_of(repository.repository, tag), source, quantization)


def _of_address(address: str, files: FileStore, progress: Progress, quantization: str | None) -> Acquired:
    """A GGUF file at an address, which may end with #sha256=HEX."""
    plain, _, mark = address.partition("#")
    name = Path(unquote(urlsplit(plain).path)).name
    wanted = _MARK.fullmatch(mark)
    if mark and wanted is None:
        raise RequestError(f"{address}: what follows # must be sha256= with 64 hexadecimal digits")
    if not name.lower().endswith(GGUF):
        raise RequestError(
            f"{address}: is not the address of a GGUF file; for a model of a published site, pass its name and "
            "--catalog ADDRESS"
        )
    from filelock import FileLock

    downloads = files.folder.with_name("downloads") / hashlib.sha256(plain.encode()).hexdigest()[:DIGEST_DIGITS]
    downloads.mkdir(parents=True, exist_ok=True)
    # Another process that downloads it is waited for.
    with FileLock(downloads.with_name(f"{downloads.name}.lock")):
        downloads.mkdir(exist_ok=True)
        path = downloads / "file"
        fetch_unlisted(plain, path, partial(progress, DOWNLOAD))
        found = sha256_of(path)
        if wanted is not None and found != wanted[1]:
            shutil.rmtree(downloads)
            raise CheckpointError(f"{plain}: has SHA-256 {found}, not {wanted[1]}; ask who gave you the address")
        source = files.copy({plain_name(name): path}, plain_name(Path(name).stem), file=plain_name(name), move=True)
        shutil.rmtree(downloads)
    return Acquired(_name_of(name, quantization), source, quantization)


def parts_of(path: Path) -> list[Path]:
    """The GGUF files that belong together with one of them. Raises CheckpointError if some are missing."""
    from ..formats.gguf.names import choose_files

    beside = [each.name for each in path.parent.glob("*") if each.suffix.lower() == GGUF]
    return [path.with_name(name) for name in choose_files(beside, path.name, str(path))]


def _name_of(text: str, tag: str | None) -> StoreName:
    """The name of a model in files of this name."""
    stem = text[: -len(GGUF)] if text.lower().endswith(GGUF) else text
    plain = "/".join(re.sub(r"[^A-Za-z0-9_.-]", "-", part).lstrip("-.") or "model" for part in stem.split("/"))
    return StoreName.parse(plain if tag is None else f"{plain}:{re.sub(r'[^A-Za-z0-9_.-]', '-', tag).lstrip('-.')}")


def plain_name(name: str) -> str:
    """A plain name for a file or a folder."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip("-.")[:MAX_NAME] or "model"


def _existing(place: str) -> Path | None:
    """The path, if there is something; a text may also be no path, or name the home of an unknown user. A file has the
    name that was given: a link in the hub's cache leads to a file that is named by its hash.
    """
    try:
        given = Path(place).expanduser()
        path = given.resolve(strict=True)
        return given.parent.resolve() / given.name if path.is_file() else path
    except (OSError, ValueError, RuntimeError):
        return None


def size_of(source: Source, files: FileStore) -> int:
    """The bytes of a source on this disk."""
    return disk_bytes([files.folder / source.folder]) if isinstance(source, Files) else source.size_bytes
