"""The Helm chart names existing settings, values, routes and metrics; if Helm is installed, it is
linted and rendered too: a `helm` program, or its Python package helm-python-sdk.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kb.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "kernlore"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
TEMPLATES = {
    path.name: path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir()
}
RULES = (ROOT / "deploy" / "prometheus" / "kernlore.rules.yml").read_text(encoding="utf-8")
RELEASE, NAMESPACE = "lore", "prod"
SERVERS: dict[str, Any] = {
    "replicas": 2,
    "settings": {"blob_url": "s3://kernlore/manuals", "allowed_hosts": "lore.example"},
    "secret": {
        "values": {"KERNLORE_CATALOG": "postgresql+psycopg://k:p@db/k", "KERNLORE_KEY": "k"}
    },
}
EVERYTHING: dict[str, Any] = {
    **SERVERS,
    "image": {"repository": "registry.example/kernlore", "pullSecrets": ["registry"]},
    "persistence": {"enabled": True, "size": "5Gi", "storageClass": "fast"},
    "ingress": {"enabled": True, "host": "kernlore.example", "tlsSecret": "tls", "className": "c"},
    "tracing": {"endpoint": "http://collector:4318"},
    "env": {"AWS_ENDPOINT_URL_S3": "https://s3.example"},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "podAnnotations": {"team": "compilers"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "only", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
}
Render = Callable[[Mapping[str, Any]], list[dict[str, Any]]]


class Refused(Exception):
    """Helm's error on values that it does not render."""


def _by_program(values: Mapping[str, Any]) -> str:
    command = ["helm", "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", "-"]
    ran = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True)
    if ran.returncode:
        raise Refused(ran.stderr)
    return ran.stdout


def _by_package(values: Mapping[str, Any]) -> str:
    helm: Any = import_module("helm_python")
    try:
        rendered = helm.Chart.load(CHART).render(
            dict(values), name=RELEASE, namespace=NAMESPACE, is_install=True
        )
    except helm.HelmError as error:
        raise Refused(str(error)) from error
    return "\n---\n".join(text for name, text in rendered.items() if name.endswith(".yaml"))


def _lint_by_program() -> list[str]:
    ran = subprocess.run(["helm", "lint", "--strict", str(CHART)], capture_output=True, text=True)
    return [ran.stdout + ran.stderr] if ran.returncode else []


def _lint_by_package() -> list[str]:
    helm: Any = import_module("helm_python")
    report = helm.lint(CHART, strict=True)
    serious = [m["error"] for m in report["messages"] if m["severity"] > 1]
    return [*report["errors"], *serious]


@pytest.fixture(scope="module")
def lint_and_render() -> tuple[Callable[[], list[str]], Callable[[Mapping[str, Any]], str]]:
    if shutil.which("helm"):
        return _lint_by_program, _by_program
    if find_spec("helm_python") is not None:
        return _lint_by_package, _by_package
    pytest.skip("Helm is not installed (a `helm` program, or pip install helm-python-sdk)")


@pytest.fixture(scope="module")
def render(lint_and_render: Any) -> Render:
    def rendered(values: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [part for part in yaml.safe_load_all(lint_and_render[1](values)) if part]

    return rendered


def only(parts: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (part,) = (part for part in parts if part["kind"] == kind)
    return part


def container(parts: list[dict[str, Any]]) -> dict[str, Any]:
    (single,) = only(parts, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return dict(single)


# -- without Helm


def paths(values: Mapping[str, Any], before: str = "") -> set[str]:
    """Paths such as `image.tag`; a mapping without declared names may have any."""
    places = set()
    for name, value in values.items():
        places.add(before + name)
        if isinstance(value, dict):
            places |= paths(value, f"{before}{name}.")
    return places


def test_templates_use_exactly_declared_values() -> None:
    used = {
        name
        for text in TEMPLATES.values()
        for name in re.findall(r"\$?\.Values\.([A-Za-z.]+)", text)
    }
    free = {"settings", "secret.values", "env"}  # names chosen by the user
    known = paths(VALUES)
    assert {name for name in used if name.rpartition(".")[0] not in free} <= known
    # Used itself, as a part of a used value, or by its parts.
    reached = {name for name in known if any(f"{name}.".startswith(f"{u}.") for u in used)}
    reached |= {name for name in known if any(u.startswith(f"{name}.") for u in used)}
    assert known - reached == set()


def test_schema_declares_exactly_values() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for values in (VALUES, EVERYTHING):
        jsonschema.validate(values, SCHEMA)
    assert set(VALUES) == set(SCHEMA["properties"]) - {"global"}
    for name, value in VALUES.items():
        described = SCHEMA["properties"][name]
        if described.get("additionalProperties") is False:
            assert set(value) == set(described["properties"]), name
    for wrong in (
        {"replica": 2},
        {"replicas": 0},
        {"settings": {"catalog": "postgresql://user:password@host/db"}},  # belongs to the secret
        {"settings": {"LOG_LEVEL": "info"}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


def test_variables_of_chart_are_settings() -> None:
    fields = {f"KERNLORE_{name.upper()}" for name in Settings.model_fields} | {"KERNLORE_KEY"}
    texts = [*TEMPLATES.values(), (CHART / "values.yaml").read_text(encoding="utf-8")]
    named = {name for text in texts for name in re.findall(r"\bKERNLORE_[A-Z_]+[A-Z]\b", text)}
    assert named and named <= fields
    reserved = SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"]
    assert set(reserved) <= set(Settings.model_fields)


def test_rules_equal_those_next_to_chart() -> None:
    assert (CHART / "files" / "kernlore.rules.yml").read_text(encoding="utf-8") == RULES


def test_versions_equal_those_of_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


# -- with Helm


def test_helm_lint_is_clean(lint_and_render: Any) -> None:
    assert lint_and_render[0]() == []


def test_release_without_values_is_one_service_with_volume(render: Render) -> None:
    parts = render({})
    assert sorted(part["kind"] for part in parts) == ["Service", "Service", "StatefulSet"]
    spec = only(parts, "StatefulSet")["spec"]
    assert spec["replicas"] == 1 and len(spec["volumeClaimTemplates"]) == 1
    assert "envFrom" not in container(parts)
    labels = spec["template"]["metadata"]["labels"]
    for part in parts:
        if part["kind"] == "Service":
            assert part["spec"]["selector"].items() <= labels.items()
    names = {part["metadata"]["name"] for part in parts if part["kind"] == "Service"}
    assert spec["serviceName"] in names


def test_replicas_with_servers_get_secrets_from_secret(render: Render) -> None:
    parts = render(SERVERS)
    secret = only(parts, "Secret")
    assert secret["stringData"] == SERVERS["secret"]["values"]
    own = container(parts)
    assert own["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
    given = {variable["name"]: variable["value"] for variable in own["env"]}
    assert given["KERNLORE_BLOB_URL"] == "s3://kernlore/manuals"
    hosts = given["KERNLORE_ALLOWED_HOSTS"].split(",")
    assert {"lore-kernlore", "lore-kernlore.prod", "lore.example"} <= set(hosts)
    assert "p@db" not in json.dumps([part for part in parts if part["kind"] != "Secret"])
    assert only(parts, "PodDisruptionBudget")["spec"]["minAvailable"] == 1
    existing = render({**SERVERS, "secret": {"existing": "mine"}})
    assert "Secret" not in {part["kind"] for part in existing}
    assert container(existing)["envFrom"] == [{"secretRef": {"name": "mine"}}]


def test_all_values_together(render: Render) -> None:
    parts = render(EVERYTHING)
    fields = {f"KERNLORE_{name.upper()}" for name in Settings.model_fields}
    own = container(parts)
    given = {variable["name"]: variable["value"] for variable in own["env"]}
    assert {name for name in given if name.startswith("KERNLORE_")} <= fields
    assert given["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert given["AWS_ENDPOINT_URL_S3"] == "https://s3.example"
    assert "kernlore.example" in given["KERNLORE_ALLOWED_HOSTS"]
    assert only(parts, "PrometheusRule")["spec"] == yaml.safe_load(RULES)
    monitor = only(parts, "ServiceMonitor")["spec"]
    monitored = [
        part
        for part in parts
        if part["kind"] == "Service"
        and monitor["selector"]["matchLabels"].items() <= part["metadata"]["labels"].items()
    ]
    assert len(monitored) == 1  # otherwise each pod would be counted twice
    (rule,) = only(parts, "Ingress")["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]["name"]
    assert backend == monitored[0]["metadata"]["name"]


def test_probes_use_existing_routes(render: Render) -> None:
    own = container(render({}))
    routes = (ROOT / "docs" / "reference" / "routes.md").read_text(encoding="utf-8")
    for probe in ("startupProbe", "livenessProbe"):
        assert f"`GET {own[probe]['httpGet']['path']}`" in routes
    program, option, text = own["readinessProbe"]["exec"]["command"]
    assert (program, option) == ("python", "-c") and "/readyz" in text and "`GET /readyz`" in routes
    compile(text, "probe", "exec")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicas": 2}, "KERNLORE_CATALOG"),
        ({**SERVERS, "settings": {}}, "settings.blob_url"),
        ({"ingress": {"enabled": True}}, "ingress.host"),
        ({"replica": 2}, "replica"),
    ],
)
def test_invalid_values_are_refused(render: Render, values: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        render(values)
