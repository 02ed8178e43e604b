"""nearfar simulate: predict what servers of a model would do under a load, or measure the costs of its steps."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from nearfar.compiler.bundle.new_folder import new_file
from nearfar.compiler.cli.output import new_console, print_json
from nearfar.compiler.runtime.errors import RequestError

from ..executors.local_opener import LocalOpener
from ..executors.local_options import LocalOptions
from ..simulate.measure import measure_model
from ..simulate.report import Report, report_caches, report_near, report_run, report_splits
from ..simulate.scenario import Scenario, checked, read_scenario
from ..simulate.studies import caches, near_and_far, simulate, splits
from ..simulate.summary import summarize
from .options import Simulate


def run(options: Simulate) -> None:
    """Raises RequestError for a scenario that is not one, and for options that do not go together."""
    if (options.scenario is None) == (options.measure is None):
        raise RequestError("give a SCENARIO to simulate, or --measure MODEL to write the costs of its steps")
    if options.measure is not None:
        measure(options, options.measure)
        return
    assert options.scenario is not None
    if options.output is not None:
        raise RequestError("-o is for --measure; --json prints the figures of a simulation, --plot draws them")
    scenario = changed(read_scenario(options.scenario), options)
    report = study(scenario, options.scenario.parent)
    if options.plot is not None:
        if report.svg is None:
            raise RequestError(f"--plot: the study '{scenario.study}' has no chart; the studies split and near have")
        with new_file(options.plot, force=options.force) as file:
            file.write_text(report.svg, encoding="utf-8")
    if options.json:
        print_json({"scenario": scenario.model_dump(mode="json", exclude_none=True), **report.json})
        return
    console = new_console()
    console.print(report.table)
    for note in report.notes:
        console.print(note, highlight=False, markup=False)


def changed(scenario: Scenario, options: Simulate) -> Scenario:
    """The scenario with what the command line says instead. The whole is checked again."""
    tables = scenario.model_dump()
    if options.seed is not None:
        tables["seed"] = options.seed
    if options.requests is not None:
        tables["workload"]["requests"] = options.requests
    if options.rate is not None:
        tables["workload"] = scenario.workload.at_rate(options.rate).model_dump()
        if options.requests is not None:
            tables["workload"]["requests"] = options.requests
    workers = {"whole": options.whole, "prefill": options.prefill, "decode": options.decode}
    given = {name: count for name, count in workers.items() if count is not None}
    if given:
        tables["cluster"] |= {"whole": 0, "prefill": 0, "decode": 0, **given}
    return checked(Scenario, tables, "options")


def study(scenario: Scenario, folder: Path) -> Report:
    """Simulate what the scenario asks."""
    title = f"{scenario.device.made(folder).name}\n{load_of(scenario)}"
    if scenario.study == "split":
        return report_splits(list(splits(scenario, folder, say)), title, scenario.workload.requests)
    if scenario.study == "cache":
        return report_caches(caches(scenario, folder))
    if scenario.study == "near":
        return report_near(list(near_and_far(scenario, folder, say)), title)
    bounds = None if scenario.bounds is None else scenario.bounds.made()
    return report_run(summarize(simulate(scenario, folder, scenario.layout(folder)), bounds))


def load_of(scenario: Scenario) -> str:
    """The load and its bounds, in a few words."""
    workload, bounds = scenario.workload, scenario.bounds
    load = workload.lengths or workload.arrivals.kind
    if bounds is None:
        return load
    first, others = f"{bounds.first_token_ms:g} ms", f"{bounds.token_ms:g} ms"
    return f"{load}; {bounds.share:.0%} with a first token within {first}, others within {others} each"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(options: Simulate, model: str) -> None:
    """Write the device with its costs, as a scenario reads it."""
    if options.output is None:
        raise RequestError("--measure needs -o FILE, for the costs; device = { file = FILE } in a scenario reads them")
    opener = LocalOpener(LocalOptions(target=options.target))
    device, measured = asyncio.run(measure_model(opener, model, options.seed or 0, say))
    table = asdict(device)
    table["costs"] = asdict(device.costs)
    with new_file(options.output, force=options.force) as file:
        file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    misses = sorted(abs(device.costs.seconds(each.shapes[0]) / each.seconds - 1) for each in measured)
    say(f"{len(measured)} steps; half of them differ from the costs by less than {misses[len(misses) // 2]:.0%}")
