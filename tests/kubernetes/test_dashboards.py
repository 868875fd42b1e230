"""The dashboard and the alert rules: Prometheus's parser takes each expression, and each metric is served."""

from __future__ import annotations

import json
import os
import re

import yaml
from support import REPO, run
from support.cluster import Cluster
from support.cluster.binaries import promql

PLACE = os.path.join(REPO, "packaging/kubernetes/chart/dashboards")
#: Variables that Grafana replaces before Prometheus sees an expression.
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$namespace": ".*", "$pod": ".*", "$gpu": ".*"}


def expressions() -> list[str]:
    """Every expression of the dashboard, and of the rules."""
    with open(os.path.join(PLACE, "nvc.json"), encoding="utf-8") as text:
        panels = json.load(text)["panels"]
    with open(os.path.join(PLACE, "rules.yaml"), encoding="utf-8") as text:
        rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for name, value in VARIABLES.items():
        found = [expression.replace(name, value) for expression in found]
    return found + [rule["expr"] for rule in rules]


def served(cluster: Cluster) -> set[str]:
    """The series that nvcd and the plugin of a node name, with or without a slice."""
    words = ("-n", "nvc", "get", "pods", "-l", "app.kubernetes.io/name=nvc", "-o", "json")
    pods = json.loads(cluster.kubectl(*words).stdout)["items"]
    name = pods[0]["metadata"]["name"]
    found: set[str] = set()
    for port in (9394, 9395):
        text = cluster.get(f"/api/v1/namespaces/nvc/pods/{name}:{port}/proxy/metrics", raw=True)
        for family, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
            found |= {family, f"{family}_bucket"} if kind == "histogram" else {family}
    return found


def test_each_metric_is_served(nvc: Cluster) -> None:
    wanted, known = expressions(), served(nvc)
    parsed = run(promql(), input="\n".join(wanted), stdin=None).stdout.splitlines()
    assert len(parsed) == len(wanted) > 20
    unknown = {name for line in parsed for name in line.split() if name not in known}
    assert not unknown, f"no such metric: {unknown}"


def test_alerts_say_what_to_do() -> None:
    with open(os.path.join(PLACE, "rules.yaml"), encoding="utf-8") as text:
        (group,) = yaml.safe_load(text)["groups"]
    for rule in group["rules"]:
        assert rule["alert"].startswith("Nvc") and rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
