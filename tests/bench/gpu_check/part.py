"""One part of the check in a process of its own: python -m gpu_check.part NAME --prepared FOLDER --report FILE.

The exit code is 0 also for failures of the part, which are in the report. Any other exit code means that the process
crashed.
"""

from __future__ import annotations

import argparse
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from .parts import PARTS, REHEARSAL_PATIENCE
from .report import NotRun, Report


@dataclass(frozen=True, slots=True)
class Job:
    """``prepared``: the output of make gpu-prepare. ``work``: a folder for temporary files. ``rehearse``: adapters and
    drivers that compute on the CPU are accepted, and sizes are small.
    """

    prepared: Path
    work: Path
    rehearse: bool

    def limit(self, seconds: float) -> float:
        """A time limit within the part."""
        return seconds * (REHEARSAL_PATIENCE if self.rehearse else 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    part = next(part for part in PARTS if part.name == options.name)
    report = Report(options.report)
    not_run = None
    try:
        module = import_module(f"gpu_check.{part.module}")
        module.run(Job(options.prepared, options.work, options.rehearse), report, *part.arguments)
    except NotRun as reason:
        not_run = str(reason)
    except ModuleNotFoundError as error:
        traceback.print_exc()
        package = (error.name or "").partition(".")[0]
        # If a module of this repository is missing, the repository is at fault.
        if package in ("", "nearfar", "gpu_check"):
            report.fail(f"ModuleNotFoundError: {error}")
        else:
            not_run = f"the Python package {package} is missing"
    except Exception as error:
        traceback.print_exc()
        report.fail(f"{type(error).__name__}: {error}")
    report.finish(not_run)


if __name__ == "__main__":
    main()
