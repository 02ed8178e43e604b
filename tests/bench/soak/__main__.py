"""`make soak`: 24 honest clients use a real `nearfar serve`, first alone and then during attacks.

    make soak MINUTES=10                              # all attacks; 2 of the minutes without them
    make soak MINUTES=1 ATTACKS=grammar,masks         # only these
    make soak MINUTES=10 ATTACKS=                     # no attacks, only load
    make soak MINUTES=1 ATTACKS=structure SINK=1      # the attacking process alone: it does not use the server

It exits with 0 if every criterion of `report.py` holds and with 1 otherwise. It writes build/soak/soak.json and the
servers' logs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from serving_process import Process

from .attacks import ATTACKS, PRIVATE_MARK, PUBLIC_MARK, run_attacks
from .honest_requests import honest_requests
from .phases import answers_alone, run_phase
from .report import SoakResult
from .servers import ATTACKER_KEY, Soaked, soaked
from .watch import MemoryWatch, watch_liveness

ROOT = Path(__file__).resolve().parents[3]
# The attacks run a little longer than the honest clients.
EXTRA_SECONDS = 2.0
# The server itself takes up to 30 seconds to drain.
END_SECONDS = 40.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--baseline-share", type=float, default=0.2, help="share of the time without attacks (default: %(default)s)"
    )
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument(
        "--think-seconds",
        type=float,
        default=0.3,
        help="mean pause of a client between requests (default: %(default)s)",
    )
    parser.add_argument(
        "--attacks", default=",".join(ATTACKS), help="attacks, separated by commas (default: all): %(default)s"
    )
    parser.add_argument(
        "--sink", action="store_true", help="attack a server that only reads, in the process of the attacks"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of the server's model (default: %(default)s)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "build" / "soak",
        help="folder for models, logs and results (default: build/soak)",
    )
    options = parser.parse_args()
    names = [name for name in options.attacks.split(",") if name]
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"unknown attacks: {', '.join(sorted(unknown))}; known: {', '.join(ATTACKS)}")
    console = Console(width=150)
    console.print("compiling models that are not cached, and starting the servers", highlight=False)
    with soaked(options.folder, options.threads, with_gateway="gateway" in names) as servers:
        found = soak(servers, options, names, console)
    (options.folder / "soak.json").write_text(json.dumps(found.to_json(), indent=1))
    found.print(console)
    sys.exit(not all(each.holds for each in found.criteria()))


def soak(servers: Soaked, options: argparse.Namespace, names: list[str], console: Console) -> SoakResult:
    url, folder = servers.server.url, servers.folder
    expected = asyncio.run(answers_alone(url, honest_requests()))
    seconds = 60 * options.minutes
    baseline_seconds = seconds * options.baseline_share
    attack_seconds = seconds - baseline_seconds
    memory = MemoryWatch(servers)
    memory.start()
    spawn = multiprocessing.get_context("spawn")
    watcher = spawn.Process(target=watch_liveness, args=(url, seconds, folder / "liveness.json"))
    watcher.start()
    console.print(f"{options.clients} clients for {baseline_seconds:.0f} s alone", highlight=False)
    baseline = asyncio.run(run_phase(url, expected, options.clients, baseline_seconds, options.think_seconds, 1))
    console.print(f"and for {attack_seconds:.0f} s with {', '.join(names) or 'no attacks'}", highlight=False)
    gateway_url = servers.gateway.url if servers.gateway is not None else None
    attacked_url = None if options.sink else url
    attack_seconds_in_all, results = attack_seconds + EXTRA_SECONDS, folder / "attacks.json"
    arguments = (names, attacked_url, gateway_url, folder, ATTACKER_KEY, attack_seconds_in_all, results)
    attacker = spawn.Process(target=run_attacks, args=arguments)
    attacker.start()
    attacked = asyncio.run(run_phase(url, expected, options.clients, attack_seconds, options.think_seconds, 2))
    for process in (attacker, watcher):
        process.join()
    memory.stop()
    server_alive, exit_code = servers.server.process.poll() is None, end(servers.server)
    received = bytes(servers.far.received) if servers.far is not None else b""
    return SoakResult(
        baseline=baseline,
        attacked=attacked,
        liveness=json.loads((folder / "liveness.json").read_text()),
        memory=memory.samples,
        attacks=json.loads((folder / "attacks.json").read_text()),
        leaked=PRIVATE_MARK.encode() in received if servers.far is not None else None,
        public_arrived=PUBLIC_MARK.encode() in received,
        server_alive=server_alive,
        server_exit_code=exit_code,
    )


def end(server: Process) -> int | None:
    """Returns the exit code after SIGTERM, or None if the process does not end in time."""
    server.process.terminate()
    try:
        return server.process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    main()
