"""What the median decoded token asks of the browser, as one line of JSON: a model of 24 layers in headless Chromium.

``make bench-web-counts`` runs it. Counts are the same on every adapter whose features are the same, so a CPU will do.
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
