"""Store: the models that a user has pulled or created on this machine, by name.

models/     a record for each name (model.py)
files/      the files of models, a folder for each set of them (files.py)
blobs/      a name for each content, which files and bundles share (blobs.py)
bundles/    compiled and downloaded bundles, of which the last used ones are kept (bundles.py)
downloads/  what was not downloaded to its end, and uploads of which no model was made yet
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import time
from typing import Any

from ..bundle.file_name import require_inside
from ..bundle.new_folder import rename_durably, reported
from ..bundle.signature import TrustedKey
from ..formats.hub import download, hub_model, remove_from_cache
from ..nearest import did_you_mean, with_advice
from ..publish.catalog import CatalogBundle
from ..runtime.errors import CheckpointError, NearfarError, OutputError, reason_of
from ..runtime.text.chat_template import ChatTemplate
from .blobs import Blobs, disk_bytes
from .bundles import compiled_from, evict_bundles, remove_bundle
from .details import describe
from .files import FileStore
from .go_template import chat_template
from .model import (
    Changes,
    Demo,
    Files,
    HubFiles,
    Source,
    StoredModel,
    now,
    read_record,
    require_possible,
    written_record,
)
from .names import StoreName, UnknownModel
from .place import VARIABLE, cache_folder
from .sources import COPY, GGUF, READ, Acquired, Progress, acquire, acquire_bundle, plain_name

# A download that was broken off is continued, and an upload is used, within this time.
STALE_SECONDS = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Store:
    """``folder`` need not exist. Several processes may use one store."""

    folder: Path

    @classmethod
    def of_user(cls) -> Store:
        return cls(cache_folder())

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.folder / "blobs")

    @property
    def files(self) -> FileStore:
        return FileStore(self.folder / "files", self.blobs)

    # --- reading ---

    def find(self, name: str) -> StoredModel | None:
        """None for a name that the store does not have, also one that cannot be a name. Raises CheckpointError for a
        damaged record.
        """
        parsed = StoreName.parse_or_none(name)
        # Another process may remove it at any time.
        with suppress(FileNotFoundError):
            return None if parsed is None else read_record(self._record(parsed))
        return None

    def has(self, name: str) -> bool:
        """Whether the store has a record of this name, also a damaged one."""
        parsed = StoreName.parse_or_none(name)
        return parsed is not None and os.path.lexists(self._record(parsed))

    def get(self, name: str) -> StoredModel:
        """Raises UnknownModel, RequestError for a text that cannot be a name, and CheckpointError."""
        StoreName.parse(name)
        model = self.find(name)
        if model is None:
            names = [each.name for each in self.models()]
            problem = f"{name}: the store has no such model"
            advice = "nearfar list shows those that it has, and nearfar pull downloads others"
            raise UnknownModel(with_advice(problem, did_you_mean(name, names), advice), param="model")
        return model

    def models(self) -> list[StoredModel]:
        """All models whose records can be read, the newest first."""
        found = [record for record in self.records() if isinstance(record, StoredModel)]
        return sorted(found, key=lambda model: model.modified, reverse=True)

    def records(self) -> Iterator[StoredModel | CheckpointError]:
        """Each record, or why it cannot be read."""
        for path in sorted((self.folder / "models").glob("[!.]*.json")):
            try:
                yield read_record(path)
            except CheckpointError as error:
                yield error
            except FileNotFoundError:
                continue  # Another process has just removed it.

    def path(self, model: StoredModel) -> Path:
        """Where its weights are: a bundle, a checkpoint's folder or a GGUF file. Files that have left the hub's cache
        are downloaded again. Raises CheckpointError for files that are missing, are links, or have other sizes.
        """
        return self._source_path(model.source, model.name)

    def adapter(self, model: StoredModel) -> Path | None:
        """The folder of its LoRA adapter. Raises as `path`."""
        return None if model.adapter is None else self.files.path(model.adapter)

    def verify(self, model: StoredModel) -> None:
        """Compare the hashes of its files with the record. Raises CheckpointError."""
        for files in (model.source, model.adapter):
            if isinstance(files, Files):
                self.files.verify(files)

    # --- changing ---

    def pull(
        self,
        model: str,
        name: str | None = None,
        progress: Progress = lambda *_: None,
        trust: Sequence[TrustedKey] = (),
        ignore_keys: Collection[str] = (),
        *,
        local: bool = True,
    ) -> StoredModel:
        """Get a model's files and give them a name, by default that of `acquire`, whose errors it raises. A model of
        that name is replaced. ``local`` is that of `acquire`.
        """
        wanted = None if name is None else StoreName.parse(name)
        with self._adding():
            acquired = acquire(model, self.files, progress, trust, local=local)
            progress(READ, 0, 0)
            return self._put(self._record_of(acquired, wanted, ignore_keys))

    def pull_bundle(
        self,
        entry: CatalogBundle,
        address: str,
        name: str,
        progress: Progress = lambda *_: None,
        trust: Sequence[TrustedKey] = (),
    ) -> StoredModel:
        """As `pull`, for a bundle of a published site."""
        wanted = StoreName.parse(name)
        with self._adding():
            source = acquire_bundle(entry, address, self.files, trust, progress)
            return self._put(self._record_of(Acquired(wanted, source)))

    def create(
        self, name: str, base: str, changes: Changes, progress: Progress = lambda *_: None, *, local: bool = True
    ) -> StoredModel:
        """A model that has everything of its base but the changes. ``base`` is a stored model, or one that `pull`
        accepts. The result does not depend on the base any more. Raises as `pull`.
        """
        wanted = StoreName.parse(name)
        check_template(changes.template)
        with self._adding():
            parent = self.find(base) or self._record_of(acquire(base, self.files, progress, local=local))
            return self._derived(wanted, parent, changes, parent=parent.name)

    def create_of_files(
        self, name: str, files: Mapping[str, Path], changes: Changes, progress: Progress = lambda *_: None
    ) -> StoredModel:
        """As `create`, of files by the names that they get: a checkpoint's folder, or one GGUF file."""
        ggufs = [each for each in files if each.lower().endswith(GGUF)]
        if ggufs and len(files) > 1:
            raise CheckpointError(f"{', '.join(files)}: pass one GGUF file, or the files of a checkpoint's folder")
        wanted = StoreName.parse(name)
        check_template(changes.template)
        progress(COPY, 0, 0)
        with self._adding():
            file = ggufs[0] if ggufs else None
            source = self.files.copy(files, plain_name(wanted.model), file=file, progress=partial(progress, COPY))
            progress(READ, 0, 0)
            return self._derived(wanted, self._record_of(Acquired(wanted, source)), changes, parent=None)

    def copy(self, name: str, to: str) -> StoredModel:
        """Raises UnknownModel, and RequestError for a text that cannot be a name."""
        wanted, model = StoreName.parse(to), self.get(name)
        with self._adding():
            return self._put(model.model_copy(update={"name": str(wanted), "created": now()}))

    def remove(self, name: str) -> int:
        """Remove a model, and all files that no other one needs: its bundles, and of the hub's cache what the store
        has downloaded. Returns the bytes that are free again. Raises UnknownModel.
        """
        path = self._record(StoreName.parse(name))
        try:
            model: StoredModel | None = self.get(name)
        except CheckpointError:
            model = None  # A damaged record can be removed, too.
        before = self._disk_bytes()
        path.unlink(missing_ok=True)
        freed = 0 if model is None else self._remove_source(model)
        self._collect()
        return freed + before - self._disk_bytes()

    def prune(self, max_bundle_bytes: int) -> int:
        """Remove what no model needs, and of bundles all but the last used ones. Returns the bytes that are free
        again.
        """
        before = self._disk_bytes()
        evict_bundles(max_bundle_bytes)
        self._collect()
        return before - self._disk_bytes()

    def size_bytes(self) -> int:
        """What the store takes on the disk, without the hub's cache."""
        return disk_bytes([self.folder])

    def _derived(self, name: StoreName, base: StoredModel, changes: Changes, *, parent: str | None) -> StoredModel:
        update: dict[str, Any] = {
            "name": str(name),
            "created": now(),
            "parent": parent,
            "parameters": changes.parameters.over(base.parameters),
        }
        for field in ("system", "template", "messages", "license", "quantization"):
            if given := getattr(changes, field):
                update[field] = given
        if changes.adapter is not None:
            update["adapter"] = self._adapter_files(changes.adapter)
        model = base.model_copy(update=update)
        require_possible(model)
        return self._put(model)

    def _record_of(
        self, acquired: Acquired, name: StoreName | None = None, ignore_keys: Collection[str] = ()
    ) -> StoredModel:
        """The record of new files. Raises what reading them raises: a model that does not compile is not stored."""
        path = self._source_path(acquired.source, str(acquired.name))
        model = StoredModel(
            name=str(name or acquired.name),
            created=now(),
            source=acquired.source,
            details=describe(path, ignore_keys),
            quantization=acquired.quantization,
        )
        require_possible(model)
        return model

    def _source_path(self, source: Source, name: str) -> Path:
        from ..demo import DEMOS

        if isinstance(source, Files):
            return self.files.path(source)
        if isinstance(source, Demo):
            return DEMOS[source.name]
        path = Path(source.path)
        repository = hub_model(source.model)
        if repository is None or not path.is_absolute():
            raise CheckpointError(f"{name}: its record does not name files of the hub; pull the model again")
        return path if path.exists() else download(repository)

    def _put(self, model: StoredModel) -> StoredModel:
        """Raises RequestError for a record that could not be read back, and OutputError."""
        path, data = self._record(model.store_name), written_record(model)
        with reported(self.folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as unfinished:
                unfinished.write(data)
            rename_durably(Path(unfinished.name), path)
        return model

    def _adapter_files(self, folder: Path) -> Files:
        from ..formats.peft import CONFIG, WEIGHTS, read_config, read_matrices

        missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
        if missing:
            raise CheckpointError(f"{folder}: has no {missing[0]}; pass the folder of a LoRA adapter in PEFT's format")
        require_inside(folder, (CONFIG, WEIGHTS))
        read_config(folder)
        read_matrices(folder)
        return self.files.copy({name: folder / name for name in (CONFIG, WEIGHTS)}, "adapter")

    def _remove_source(self, model: StoredModel) -> int:
        """Raises nothing if the source is gone already."""
        others = [each.source for each in self.models()]
        if model.source in others:
            return 0
        try:
            path = self.path(model) if not isinstance(model.source, HubFiles) else Path(model.source.path)
        except NearfarError:
            return 0
        for bundle in compiled_from(path):
            remove_bundle(bundle)
        source = model.source
        repository = hub_model(source.model) if isinstance(source, HubFiles) and source.fetched else None
        if repository is None:
            return 0
        # Another choice of the same repository needs the revision.
        same = [hub_model(each.model) for each in others if isinstance(each, HubFiles)]
        if any(each is not None and each.repository == repository.repository for each in same):
            return 0
        return remove_from_cache(repository, path)

    def _disk_bytes(self) -> int:
        return disk_bytes(self.folder / name for name in ("files", "blobs", "bundles", "downloads"))

    def _record(self, name: StoreName) -> Path:
        return self.folder / "models" / name.file

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """Several processes may add models at once; meanwhile, none removes files that no record names."""
        with self._lock(alone=False):
            yield

    def _collect(self) -> None:
        """Remove the files that no model needs, unless another process adds a model now."""
        with suppress(BlockingIOError), self._lock(alone=True):
            models = self.models()
            parts = [part for model in models for part in (model.source, model.adapter)]
            self.files.remove_others({part.folder for part in parts if isinstance(part, Files)})
            for path in (self.folder / "models").glob(".*"):
                path.unlink(missing_ok=True)  # A killed process was writing a record.
            for path in (self.folder / "downloads").glob("*"):
                with suppress(OSError):
                    if time() - path.lstat().st_mtime > STALE_SECONDS:
                        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            self.blobs.collect()

    @contextmanager
    def _lock(self, *, alone: bool) -> Iterator[None]:
        """Raises OutputError if the folder cannot be written, and BlockingIOError if others hold the lock that one
        wants ``alone``.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "store.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise OutputError(
                f"{self.folder}: cannot be written: {reason_of(error)}; set {VARIABLE} to another folder"
            ) from error
        try:
            with suppress(ImportError):
                import fcntl  # Windows does not have this module; there, removing an open file fails.

                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
            yield
        finally:
            os.close(descriptor)


def check_template(template: str | None) -> None:
    """Raises RequestError for a template that cannot be read."""
    if template is not None:
        ChatTemplate(chat_template(template), {}).check_syntax()
