"""GPU calls of the median decoded token of a model of 24 layers in headless Chromium, as one line of JSON.

``make bench-web-counts`` runs this. Adapters with the same features give the same counts, so a CPU adapter suffices.
"""

from __future__ import annotations

import json

from bench_page import bench_page, narrow_bundle


def main() -> None:
    with bench_page(narrow_bundle(), gpu=False) as page:
        counts = page.evaluate("() => window.nearfarBench.countsPerToken()")
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
