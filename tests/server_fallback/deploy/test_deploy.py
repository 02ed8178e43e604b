"""The files with which the server is deployed, against the server itself: its options, routes and metrics."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command_line import parsed
from fake_models import FakeExecutor, FakeModels
from prometheus_client.parser import text_string_to_metric_families

from nearfar.compiler.options import Group, declared
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.stats import BatchRecord, EngineStats, RequestRecord
from nearfar.server_fallback.executors.executor import ExecutorState, PrefillState
from nearfar.server_fallback.router.decision.policy import Policy

DEPLOY = Path(__file__).parents[3] / "server_fallback/deploy"
FILES = DEPLOY / "chart/files"
ALERTS, DASHBOARD = FILES / "alerts.yaml", FILES / "dashboard.json"
# A metric's name, not that of a function, a label or a variable.
METRIC = re.compile(r"\b(?:(?:vllm|nearfar):\w+|http_requests\w*)")
LABELS = re.compile(r"(?:by|without) \(([^)]*)\)|[{,]\s*(\w+)\s*(?:=~|!~|!=|=)")
# Those that Prometheus adds, and its own metric.
ADDED = {"instance", "job"}


@pytest.fixture(scope="module")
def samples() -> dict[str, set[str]]:
    """The names of all samples of a server in use, and their labels."""
    record, batches, models = RequestRecord(), BatchRecord(), FakeModels(FakeExecutor())
    engine = EngineStats(requests=record.snapshot(), batches=batches.snapshot(), num_pages=1, max_adapters=1)
    prefill = PrefillState(1, 1, required=False, fallbacks={"slow": 1})
    models.fake.current = ExecutorState(True, "", 1, 1, 1, engine, prefill=prefill)
    metrics = create_app(models, ApiConfig()).state.service.metrics
    for metric in vars(metrics).values():
        if hasattr(metric, "_labelnames") and metric._labelnames:
            metric.labels(*metric._labelnames)
    families = text_string_to_metric_families(metrics.text().decode())
    found: dict[str, set[str]] = {"up": set()}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Of all alerts and panels, with their names."""
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_alerts_and_panels_read_metrics_and_labels_that_exist(
    name: str, expression: str, samples: dict[str, set[str]]
) -> None:
    metrics = set(METRIC.findall(expression)) or {"up"}
    assert metrics <= samples.keys(), name
    labels = {label.strip() for groups in LABELS.findall(expression) for group in groups for label in group.split(",")}
    assert labels - ADDED - {""} <= set().union(*(samples[metric] for metric in metrics)), name
    assert expression.count("(") == expression.count(")")
    # A counter is read by its rate.
    for metric in metrics:
        if metric.endswith(("_total", "_bucket")):
            assert re.search(rf"(rate|increase)\(\s*{metric}\b", expression), name


def test_the_check_of_metrics_finds_one_that_is_mistyped(samples: dict[str, set[str]]) -> None:
    assert set(METRIC.findall("rate(vllm:prompt_tokens_totals[5m])")) - samples.keys() == {"vllm:prompt_tokens_totals"}


def test_the_configurations_are_those_of_the_commands() -> None:
    serve = parsed("serve", "--config", str(DEPLOY / "nearfar.toml"))
    assert (serve.models, serve.host) == (("demo",), "0.0.0.0")
    gateway = parsed("gateway", "--config", str(DEPLOY / "gateway.toml"))
    assert gateway.policy == DEPLOY / "policy.json"
    assert Policy.read(gateway.policy).mode == "prefer-near"
    balancer = parsed("serve", "--config", str(DEPLOY / "balancer.toml"))
    assert (balancer.executor, balancer.port) == ("upstream", serve.port)
    # Lines that are comments become options without their sign.
    for file in ("nearfar.toml", "balancer.toml"):
        for line in re.findall(r"^# (\w+ = .*)$", (DEPLOY / file).read_text(), re.MULTILINE):
            key = line.partition(" ")[0]
            if key not in ("name", "sha256", "requests_per_minute", "tokens_per_minute", "max_concurrent"):
                assert has_key(type(serve), key), key


def has_key(owner: type, key: str) -> bool:
    """Whether the options of a command may have this key in a file."""
    return any(has_key(each.type, key) if isinstance(each, Group) else each.key == key for each in declared(owner))


def test_compose_runs_commands_that_exist_with_files_that_exist() -> None:
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = composed["services"]
    for name in ("server", "gateway"):
        service = services[name]
        command = [
            each.replace("/etc/nearfar", str(DEPLOY)) if each.startswith("/etc/nearfar/") else each
            for each in service["command"]
        ]
        assert parsed(*command).host == "0.0.0.0"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in composed["volumes"] or (DEPLOY / source).is_file(), volume
    assert (DEPLOY / services["server"]["build"]["context"]).resolve() == DEPLOY.parents[1]
    scraped = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"][0]
    assert scraped["job_name"] == "nearfar"
    targets = scraped["static_configs"][0]["targets"]
    assert targets == [f"{name}:{parsed_port(name)}" for name in ("server", "gateway")]


def test_compose_runs_workers_apart_that_know_each_other() -> None:
    composed, apart = (yaml.safe_load((DEPLOY / f"compose{name}.yaml").read_text()) for name in ("", ".roles"))
    commands = {
        name: parsed(*(each.replace("/etc/nearfar", str(DEPLOY)) for each in service["command"]))
        for name, service in apart["services"].items()
        if "command" in service
    }
    decode = [name for name, options in commands.items() if options.local.prefill.role == "decode"]
    prefill = [name for name, options in commands.items() if options.local.prefill.role == "prefill"]
    addresses = {name: f"http://{name}:{commands[name].port}" for name in commands}
    balancer = commands["server"]
    assert balancer.others.upstream == tuple(addresses[name] for name in decode)
    for name in ("server", *decode):
        assert commands[name].local.prefill.prefill_from == tuple(addresses[each] for each in prefill)
    for name in (*prefill, *decode):
        service = apart["services"][name]
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        commands[name].local.prefill.require_consistent("local", 1)
    for service in apart["services"].values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in composed["volumes"] or (DEPLOY / source).is_file(), volume
        assert set(service.get("depends_on", ())) <= apart["services"].keys()
    (scraped,) = yaml.safe_load((DEPLOY / "workers.yaml").read_text())
    assert [f"http://{target}" for target in scraped["targets"]] == [addresses[name] for name in (*prefill, *decode)]


def parsed_port(service: str) -> int:
    command, file = {"server": ("serve", "nearfar.toml"), "gateway": ("gateway", "gateway.toml")}[service]
    return int(parsed(command, "--config", str(DEPLOY / file)).port)


def test_the_image_runs_as_a_user_without_rights() -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    final = lines[max(index for index, line in enumerate(lines) if line.startswith("FROM")) :]
    (user,) = [line.split()[1] for line in final if line.startswith("USER")]
    assert user == "10001:10001"
    entry, command = (
        json.loads(next(line for line in final if line.startswith(word)).removeprefix(word))
        for word in ("ENTRYPOINT", "CMD")
    )
    assert entry == ["tini", "--", "nearfar"]
    assert parsed(*(each.replace("/etc/nearfar", str(DEPLOY)) for each in command)).models == ("demo",)
    copied = [line.split()[1:] for line in lines if line.startswith("COPY --from=build")]
    assert copied == [["--from=build", "/opt/nearfar", "/opt/nearfar"]]


def test_the_unit_starts_the_server_and_is_one_of_systemd(tmp_path: Path) -> None:
    text = (DEPLOY / "nearfar.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *arguments = shlex.split(line)
    assert program.endswith("/nearfar")
    parsed(*(each.replace("/etc/nearfar", str(DEPLOY)) for each in arguments))
    assert re.search(r"^ExecReload=.*-HUP \$MAINPID$", text, re.MULTILINE)
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "nearfar.service"
    unit.write_text(text.replace(program, "/bin/true"))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
