"""The Helm chart, rendered by Helm: what Kubernetes would start has options, routes, volumes and fields that exist."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import chart_tools
import jsonschema_rs
import pytest
import yaml
from command_line import parsed
from conftest import ROOT, lacks
from fake_models import FakeModels

from nearfar.server_fallback.api.app import create_app
from nearfar.server_fallback.api.config import ApiConfig

CHART = ROOT / "server_fallback/deploy/chart"
SECRETS = {"keys": {"existingSecret": "k"}, "tls": {"existingSecret": "t", "authority": "ca.crt"}}
ON = {"enabled": True}
GIVEN: Mapping[str, dict[str, Any]] = {
    "few": {},
    "apart": {
        "replicas": 3,
        "prefill": {"replicas": 2, "workerKey": {"secretName": "w"}},
        "gateway": ON,
        **SECRETS,
    },
    "all": {
        "imagePullSecrets": [{"name": "pull"}],
        "environment": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {}},
        "cache": {"storageClass": "fast"},
        "service": {"type": "LoadBalancer", "port": 443},
        "gateway": {**ON, "keys": {"existingSecret": "g"}, "farKey": {"secretName": "f"}},
        "monitoring": {"serviceMonitor": {**ON, "labels": {"release": "p"}}, "alerts": ON, "dashboard": ON},
        **SECRETS,
    },
    "without a volume": {"cache": {"enabled": False}},
}
# Types of the Prometheus operator, of which Kubernetes has no schemas.
OPERATOR = {"ServiceMonitor", "PrometheusRule"}
Document = dict[str, Any]


@pytest.fixture(scope="module")
def helm() -> str:
    found = chart_tools.helm()
    if found is None:
        lacks("helm is not installed ('make build/chart-tools/.made' downloads it for Linux on x86-64)")
    return found


@pytest.fixture(params=GIVEN)
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of values."""
    file = tmp_path / "given.yaml"
    file.write_text(json.dumps(GIVEN[request.param]))
    return file


def values() -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


def rendered(helm: str, given: Path) -> list[Document]:
    command = [helm, "template", "x", str(CHART), "--namespace=ns", f"--values={given}"]
    return [each for each in yaml.safe_load_all(subprocess.check_output(command)) if each]


def commands(documents: list[Document], tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """Of each pod, the name of its owner and the options of its command, with the file that the chart gives it."""
    files = {
        name: text
        for each in documents if each["kind"] == "ConfigMap"
        for name, text in each["data"].items() if name.endswith((".toml", ".json"))
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for each in documents:
        if "replicas" in each.get("spec", {}):
            (container,) = each["spec"]["template"]["spec"]["containers"]
            yield (
                each["metadata"]["name"],
                parsed(*(argument.replace("=/etc/nearfar/", f"={tmp_path}/") for argument in container["args"])),
            )


@cache
def schema_of(version: str, api: str, kind: str) -> Any:
    """Raises StopIteration for a type that Kubernetes has not."""
    definitions = kubernetes(version)
    group, _, name = api.rpartition("/")
    wanted = {"group": group, "version": name, "kind": kind}
    found = next(
        key for key, each in definitions["$defs"].items() if wanted in each.get("x-kubernetes-group-version-kind", ())
    )
    return jsonschema_rs.validator_for({**definitions, "$ref": f"#/$defs/{found}"})


@cache
def kubernetes(version: str) -> dict[str, Any]:
    return {"$defs": json.loads(chart_tools.definitions(version).read_text())["$defs"]}


def test_helm_finds_nothing_to_criticise(helm: str, given: Path) -> None:
    subprocess.run([helm, "lint", "--strict", "--quiet", f"--values={given}", str(CHART)], check=True)


@pytest.mark.parametrize("version", chart_tools.VERSIONS)
def test_kubernetes_knows_every_field(helm: str, given: Path, version: str) -> None:
    if not chart_tools.definitions(version).is_file():
        lacks("the schemas of Kubernetes are not there ('make build/chart-tools/.made' downloads them)")
    documents = rendered(helm, given)
    for document in documents:
        if document["kind"] not in OPERATOR:
            schema_of(version, document["apiVersion"], document["kind"]).validate(document)
    # The schemas are strict: a field at the wrong place is found.
    (server,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == ("Deployment", "x-nearfar"))
    container = server["spec"]["template"]["spec"]["containers"][0]
    container["terminationGracePeriodSeconds"] = 60
    assert not schema_of(version, "apps/v1", "Deployment").is_valid(server)


def test_pods_start_commands_that_exist_with_volumes_that_exist(helm: str, given: Path, tmp_path: Path) -> None:
    documents = rendered(helm, given)
    claims = {each["metadata"]["name"] for each in documents if each["kind"] == "PersistentVolumeClaim"}
    maps = {each["metadata"]["name"] for each in documents if each["kind"] == "ConfigMap"}
    for _, options in commands(documents, tmp_path):
        assert options.host == "0.0.0.0"
    pods = {}
    for each in documents:
        if "replicas" in each.get("spec", {}):
            spec, pod = each["spec"], each["spec"]["template"]
            assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
            (container,) = pod["spec"]["containers"]
            own = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
            mounted = {volume["name"] for volume in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]} | own
            for volume in pod["spec"]["volumes"]:
                assert volume.get("configMap", {"name": next(iter(maps))})["name"] in maps
                assert {volume.get("persistentVolumeClaim", {}).get("claimName")} <= claims | {None}
            pods[each["metadata"]["name"]] = pod["metadata"]["labels"], container["ports"]
    for each in documents:
        if each["kind"] == "Service":
            selector, ports = each["spec"]["selector"], each["spec"]["ports"]
            (found,) = (ports_of for labels, ports_of in pods.values() if selector.items() <= labels.items())
            assert {port["targetPort"] for port in ports} <= {port["name"] for port in found}


def test_workers_apart_know_each_other(helm: str, tmp_path: Path) -> None:
    given = tmp_path / "given.yaml"
    given.write_text(json.dumps(GIVEN["apart"]))
    documents = rendered(helm, given)
    assert {
        each["metadata"]["name"]: each["spec"]["replicas"] for each in documents if "replicas" in each.get("spec", {})
    } == {"x-nearfar": 1, "x-nearfar-gateway": 1, "x-nearfar-prefill": 2, "x-nearfar-decode": 3}
    options = dict(commands(documents, tmp_path))
    balancer, decode = options["x-nearfar"], options["x-nearfar-decode"]
    assert balancer.others.upstream == tuple(
        f"https://x-nearfar-decode-{index}.x-nearfar-decode.ns.svc:8000" for index in range(3)
    )
    assert balancer.local.prefill.prefill_from == decode.local.prefill.prefill_from
    assert len(decode.local.prefill.prefill_from) == 2
    assert options["x-nearfar-prefill"].local.prefill.role == "prefill"
    for each in (balancer, decode):
        each.local.prefill.require_consistent(each.executor, each.front_ends)


def test_an_unknown_value_is_refused_by_name(helm: str) -> None:
    command = [helm, "template", "x", str(CHART), "--set=replica=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "replica" in done.stderr


def test_the_values_fit_their_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    validator.validate(values())
    assert not validator.is_valid({**values(), "replica": 2})
    assert set(values()) | {"global"} == set(schema["properties"])


def test_probes_ask_for_routes_that_exist() -> None:
    routes = create_app(FakeModels(), ApiConfig()).openapi()["paths"].keys()
    paths = re.findall(r"path: (/[a-z/]+),", (CHART / "templates/_helpers.tpl").read_text())
    assert paths == ["/health/startup", "/health/live", "/health/ready"]
    assert set(paths) <= routes
    assert "/health/live" in (CHART.parent / "Containerfile").read_text()
