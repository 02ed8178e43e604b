"""The runner of a command: the one that it names, that of the bundle's target, or the reference on the CPU if this
machine has no device for the target.
"""

from __future__ import annotations

import sys

from ..bundle.folder import Bundle, ExportBundle
from ..errors import DeviceError
from ..pipeline.target import check_machine, open_runner
from ..runtime.batch import Limits, Runner


def open_command_runner(name: str | None, bundle: Bundle | ExportBundle, limits: Limits) -> Runner:
    """``name`` is that of ``--runner``, None if it was not given. Raises what `open_runner` raises; a device that is
    found and fails is an error, whose message names the reference.
    """
    if name is None and isinstance(bundle, Bundle):
        try:
            check_machine(bundle)
        except DeviceError as error:
            print(f"note: {error.message}. Running on the CPU with the slow numpy runner instead.", file=sys.stderr)
            name = "numpy"
    name = name or bundle.manifest.target
    try:
        return open_runner(name, bundle, limits)
    except DeviceError as error:
        if name == "numpy" or not isinstance(bundle, Bundle):
            raise
        raise DeviceError(f"{error.message}; or use --runner numpy", **error.details) from error
