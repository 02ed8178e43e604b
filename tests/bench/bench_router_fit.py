"""The time and memory of ``nearfar router fit`` and ``eval`` on many prompts: ``python bench_router_fit.py FOLDER``.

FOLDER holds RouteLLM's answers of Mixtral 8x7B (near) and GPT-4 (far): gsm8k_responses.csv and mmlu/*.csv (Ong et al.
2024). For more pairs than these, further prompts are the first half of one and the second half of another.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench_compile import machine

NEAR, FAR = "mistralai/Mixtral-8x7B-Instruct-v0.1", "gpt-4-1106-preview"
Row = tuple[str, str, bool, bool]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, nargs="+", default=[1500, 8318, 20_000])
    parser.add_argument("--refits", type=int, default=10, help="refits of the evaluation")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        for count in options.pairs:
            pairs, policy = Path(name) / "pairs.jsonl", Path(name) / "policy.json"
            pairs.write_text("".join(line(row) for row in rows(options.folder, count)), encoding="utf-8")
            measure(f"fit {count:,}", "fit", str(pairs), "-o", str(policy))
            fitted_on = ("--fitted-on", str(pairs), "--refits", str(options.refits))
            measure(f"eval {count:,}", "eval", str(pairs), "--policy", str(policy), *fitted_on)


def read_answers(folder: Path) -> list[Row]:
    """Each prompt with its subject, and whether near and far were right."""
    return [
        (record["prompt"], file.stem, record[NEAR] == "True", record[FAR] == "True")
        for file in sorted([folder / "gsm8k_responses.csv", *folder.glob("mmlu/*.csv")])
        for record in csv.DictReader(file.open(encoding="utf-8", newline=""))
    ]


def rows(folder: Path, count: int) -> list[Row]:
    found = read_answers(folder)
    rng = random.Random(0)
    rng.shuffle(found)
    real = len(found)
    while len(found) < count:
        (text, task, near, far), (other, *_) = found[rng.randrange(real)], found[rng.randrange(real)]
        words, others = text.split(" "), other.split(" ")
        found.append((" ".join([*words[: len(words) // 2], *others[len(others) // 2 :]]), task, near, far))
    return found[:count]


def line(row: Row) -> str:
    prompt, task, near, far = row
    near_answer, far_answer = ({"answer": "", "right": right, "seconds": 0.0} for right in (near, far))
    return json.dumps({"prompt": prompt, "task": task, "near": near_answer, "far": far_answer}) + "\n"


def measure(title: str, *arguments: str) -> None:
    """Run ``nearfar router`` and print its wall time, processor time and peak memory, by the kernel's count."""
    command = [str(Path(sys.executable).with_name("nearfar")), "router", *arguments]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, processor = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    result = "" if process.returncode == 0 else f", exit status {process.returncode}"
    print(f"{title} pairs: {seconds:.0f} s, processor {processor:.0f} s, {usage.ru_maxrss / 1e3:.0f} MB{result}")


if __name__ == "__main__":
    main()
