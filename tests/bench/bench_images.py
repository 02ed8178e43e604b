"""The processor time to prepare a picture of 12 megapixels for each family of models, in Python and in Node.

    PYTHONPATH=tests .venv/bin/python tests/bench/bench_images.py

The pixels are random. Both make the same patches, whose SHA-256 is compared.
"""

from __future__ import annotations

import hashlib
import io
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from bench_compile import machine
from image_families import FAMILIES, pattern, spec_of, write_family
from image_oracle import VECTORS
from PIL import Image

from nearfar.compiler.runtime.images.decode import decode_image
from nearfar.compiler.runtime.images.patches import prepare_image

WIDTH, HEIGHT, RUNS = 4000, 3000, 5
IMAGES = Path(__file__).parents[2] / "web/dist/images.js"
NODE = """
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
const [images, file, vectors, width, height, runs] = process.argv.slice(1);
const { prepareImage } = await import(images);
const picture = { width: Number(width), height: Number(height), data: new Uint8Array(readFileSync(file)) };
const found = {};
for (const [name, { spec }] of Object.entries(JSON.parse(readFileSync(vectors, "utf8")))) {
  found[name] = { times: [] };
  for (let run = 0; run < Number(runs); run++) {
    const began = process.cpuUsage();
    const { patches } = await prepareImage(spec, picture);
    const { user, system } = process.cpuUsage(began);
    found[name].times.push((user + system) / 1000);
    found[name].patches = createHash("sha256").update(patches).digest("hex");
  }
}
console.log(JSON.stringify(found));
"""


def main() -> None:
    print(machine())
    picture = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "pixels"
        file.write_bytes(picture.tobytes())
        values = [IMAGES, file, VECTORS, WIDTH, HEIGHT, RUNS]
        command = ["node", "--input-type=module", "-e", NODE, *map(str, values)]
        theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for name, family in FAMILIES.items():
            spec = spec_of(write_family(family, Path(made) / name))
            times = []
            for _ in range(RUNS):
                began = time.process_time()
                prepared = prepare_image(spec, picture)
                times.append(1000 * (time.process_time() - began))
            assert hashlib.sha256(prepared.patches.tobytes()).hexdigest() == theirs[name]["patches"], name
            node = statistics.median(theirs[name]["times"])
            print(f"{name:15} {statistics.median(times):5.0f} ms in Python, {node:5.0f} ms in Node")
    photo = io.BytesIO()
    Image.fromarray(pattern(WIDTH, HEIGHT)).save(photo, "JPEG", quality=90)
    began = time.process_time()
    decode_image(photo.getvalue())
    print(f"decoding a JPEG of {photo.tell() / 1e6:.1f} MB: {1000 * (time.process_time() - began):.0f} ms in Python")


if __name__ == "__main__":
    main()
