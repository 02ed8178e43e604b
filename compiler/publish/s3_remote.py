"""A bucket with S3's API, by boto3: Amazon's, or another host's with AWS_ENDPOINT_URL (Cloudflare R2, MinIO, ...)."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..runtime.errors import OutputError, ToolError
from .hosts import ALWAYS_ASK, FOREVER, HASHED
from .remote import SiteFile

TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json", ".wgsl": "text/plain"}
# The key of the SHA-256 among an object's metadata.
DIGEST = "sha256"
# A file below weights/ or kernels/ whose name ends with the start of its hash.
_HASHED = re.compile(rf"(?:.*/)?(?:{'|'.join(HASHED)})/[^/]*-[0-9a-f]{{12}}(?:\.[^/]*)?")


class S3Remote:
    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            import boto3
        except ImportError as error:
            raise ToolError("--to s3:// needs boto3: pip install 'nearfar[s3]'") from error
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        with self._reported():
            self._client: Any = boto3.client("s3")

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def address(self) -> None:
        """A bucket is often served at another address than its own."""
        return None

    def read(self, name: str) -> bytes | None:
        with self._reported():
            if name not in self._there(name):
                return None
            body: bytes = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"].read()
            return body

    def lacks(self, files: Sequence[SiteFile]) -> list[SiteFile]:
        with self._reported():
            there = self._there()
            return [file for file in files if not self._is_same(file, there.get(file.name))]

    def upload(self, files: Sequence[SiteFile]) -> None:
        with self._reported():
            for file in files:
                details = {
                    "ContentType": content_type(file.name),
                    "CacheControl": FOREVER if _HASHED.fullmatch(file.name) else ALWAYS_ASK,
                    "Metadata": {DIGEST: file.sha256},
                }
                self._client.upload_file(str(file.path), self._bucket, self._prefix + file.name, ExtraArgs=details)

    def _there(self, name: str = "") -> dict[str, int]:
        """The sizes of the objects whose names start with ``name``."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + name)
        return {
            each["Key"].removeprefix(self._prefix): each["Size"] for page in pages for each in page.get("Contents", ())
        }

    def _is_same(self, file: SiteFile, size: int | None) -> bool:
        """An object of the same size counts only if its metadata has the hash that we upload with it."""
        if size != file.size:
            return False
        head = self._client.head_object(Bucket=self._bucket, Key=self._prefix + file.name)
        return bool(head.get("Metadata", {}).get(DIGEST) == file.sha256)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (Boto3Error, BotoCoreError, ClientError, OSError) as error:
            raise OutputError(
                f"{self}: {error}; check the bucket, and the keys and the region of your AWS settings"
            ) from error


def content_type(name: str) -> str:
    suffix = name[name.rfind(".") :]
    return TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
