"""The files with which the server is deployed, against the server itself: its options, routes and metrics."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from command_line import parsed
from fake_models import FakeExecutor, FakeModels
from prometheus_client.parser import text_string_to_metric_families

from nearfar.compiler.options import Group, declared
from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig
from nearfar.server_fallback.engine.stats import BatchRecord, EngineStats, RequestRecord
from nearfar.server_fallback.executors.executor import ExecutorState
from nearfar.server_fallback.router.decision.policy import Policy

DEPLOY = Path(__file__).parents[3] / "server_fallback/deploy"
CHART = DEPLOY / "chart"
ALERTS, DASHBOARD = CHART / "files/alerts.yaml", CHART / "files/dashboard.json"
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
    models.fake.current = ExecutorState(True, "", 1, 1, 1, engine)
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
    # Lines that are comments become options without their sign.
    text = (DEPLOY / "nearfar.toml").read_text()
    for line in re.findall(r"^# (\w+ = .*)$", text, re.MULTILINE):
        key = line.partition(" ")[0]
        if key not in ("name", "sha256", "requests_per_minute", "tokens_per_minute", "max_concurrent"):
            assert has_key(type(serve), key), key


def has_key(owner: type, key: str) -> bool:
    """Whether the options of a command may have this key in a file."""
    return any(has_key(each.type, key) if isinstance(each, Group) else each.key == key for each in declared(owner))


def values() -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_the_chart_calls_commands_with_options_that_exist(tmp_path: Path) -> None:
    for template, config in (
        ("server.yaml", values()["config"]),
        ("gateway.yaml", values()["gateway"]["config"]),
    ):
        text = (CHART / "templates" / template).read_text()
        arguments = re.findall(r"^ {12}- (serve|gateway|--[^{\n]*(?:\{\{.*)?)$", text, re.MULTILINE)
        assert len(arguments) > 4
        file = tmp_path / template
        file.write_text(config)
        given = [
            f"--config={file}" if each.startswith("--config") else re.sub(r"\{\{.*\}\}", "x", each)
            for each in arguments
        ]
        options = parsed(*given)
        assert options.host == "0.0.0.0"


def test_probes_ask_for_routes_that_exist() -> None:
    routes = create_app(FakeModels(), ApiConfig()).openapi()["paths"].keys()
    paths = re.findall(r"path: (/[a-z/]+),", (CHART / "templates/_helpers.tpl").read_text())
    assert paths == ["/health/startup", "/health/live", "/health/ready"]
    assert set(paths) <= routes
    assert "/health/live" in (DEPLOY / "Containerfile").read_text()


def test_the_values_fit_their_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    validator.validate(values())
    assert not validator.is_valid({**values(), "replica": 2})
    assert set(values()) | {"global"} == set(schema["properties"])


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
    assert entry == ["nearfar"]
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
