"""The file of a bundle that records how `--quality best` made its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from ..bundle.folder import Bundle, sha256_of
from ..runtime.errors import BundleError, reason_of

QUALITY_FILE = "quality.json"


@dataclass(frozen=True, slots=True)
class Record:
    """A report on a bundle's weights. ``bits``: the average number of bits per weight, including scales. The
    divergences are means (KL, in nats) on the calibration text: the one that the choice of formats expected, and those
    on a held-out part, after the fit of each matrix and after they were tuned together; None for a model that is too
    large for this. Of an embedding model, the expected divergence is 1 - cosine, and the cosines are those of the
    vectors of the calibration's texts with the original's.
    """

    method: str
    budget: float
    bits: float
    calibration: str
    calibration_sha256: str
    calibration_tokens: int
    formats: Mapping[str, str]
    expected_divergence: float
    fitted_divergence: float | None
    tuned_divergence: float | None
    cosine_mean: float | None = None
    cosine_min: float | None = None

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()


def read_record(bundle: Bundle) -> Record | None:
    """None for a bundle that was made without `--quality best`. Raises BundleError for a file that the manifest lists
    and that is missing or not a record.
    """
    expected = next((entry.sha256 for entry in bundle.manifest.files if entry.file == QUALITY_FILE), None)
    if expected is None:
        return None
    path = bundle.file(QUALITY_FILE)
    try:
        if sha256_of(path) != expected:
            raise BundleError(f"{path}: does not match the manifest; copy or compile the bundle again")
        return TypeAdapter(Record).validate_json(path.read_bytes())
    except OSError as error:
        raise BundleError(f"{path}: cannot be read: {reason_of(error)}; copy or compile the bundle again") from error
    except ValidationError as error:
        raise BundleError(
            f"{path}: is not a record of --quality best ({error.errors()[0]['msg']}); compile the bundle again"
        ) from error
