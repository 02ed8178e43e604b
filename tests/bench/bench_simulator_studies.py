"""The example scenarios of `nearfar simulate`: their results, the processor time that each takes, and their plots.

    python tests/bench/bench_simulator_studies.py -o tests/bench/results/simulator-studies.json --plots \\
        server_fallback/simulate/examples
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from bench_compile import ROOT, machine

from nearfar.server_fallback.cli.simulate import study
from nearfar.server_fallback.simulate.scenario import read_scenario

EXAMPLES = ROOT / "server_fallback/simulate/examples"


def main() -> None:
    names = sorted(path.stem for path in EXAMPLES.glob("*.toml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "build/bench/simulator-studies.json")
    parser.add_argument("--plots", type=Path, help="the folder for an SVG of each study that has one")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="the others are kept as stored")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(options.output.read_text()) if options.output.exists() else {}
    for name in options.only:
        start = time.process_time()
        report = study(read_scenario(EXAMPLES / f"{name}.toml"), EXAMPLES)
        seconds = time.process_time() - start
        print(f"{name}: {seconds:.1f} s of processor time", flush=True)
        found[name] = {"machine": machine(), "processor_seconds": round(seconds, 1), **report.json}
        options.output.write_text(json.dumps(found, indent=1) + "\n")
        if options.plots is not None and report.svg is not None:
            (options.plots / f"{name}.svg").write_text(report.svg, encoding="utf-8")


if __name__ == "__main__":
    main()
