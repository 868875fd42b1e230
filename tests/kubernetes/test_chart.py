"""The chart and the manifest: the API server takes what they say, and Helm refuses values that mean nothing."""

from __future__ import annotations

import glob
import os
from typing import Any

import pytest
import yaml
from support import run
from support.cluster import Cluster, programs

from nvc.kernel import privileges
from nvc.kernel.privileges import PERMITTED, mask
from nvc.kernel.tracer import NEEDED
from nvc.request.config import load


def template(made: str, *words: str, check: bool = True) -> tuple[int, str]:
    """What Helm says to these values, and its exit code."""
    (chart,) = glob.glob(os.path.join(made, "nvc-*.tgz"))
    command = (os.path.join(programs(), "helm"), "template", "nvc", chart, "--namespace", "nvc")
    done = run(*command, "--kube-version=1.36.0", *words, check=check)
    return done.returncode, done.stdout + done.stderr


def rendered(made: str, *words: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(template(made, *words)[1]) if each]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in documents if each["kind"] == kind]


#: Of nvcd at its start, beside what it keeps.
MORE = {"BPF", "PERFMON", "SYS_ADMIN", "NET_ADMIN"}
DRA = "--api-versions=resource.k8s.io/v1"
EVERY = [
    (DRA,),
    ("--set=mode=device-plugin",),
    (DRA, "--set=driverRoot=/run/nvidia/driver"),
    (DRA, "--set=driverRoot=/opt/driver,privileged=false,nvcd.enabled=false,metrics.enabled=false"),
    (DRA, "--set=metrics.dashboard=true,deviceClasses.sliceParameters.policy=weight"),
    (DRA, "--set=nri.enabled=true,networkPolicy.enabled=true"),
    (DRA, "--set=uninstall=true"),
]


@pytest.mark.parametrize("words", EVERY, ids=lambda words: words[-1])
def test_the_api_server_takes_it(made: str, cluster: Cluster, words: tuple[str, ...]) -> None:
    """Each object by a dry run on the server, where an unknown field is an error."""
    cluster.kubectl("create", "namespace", "nvc", check=False)
    text = template(made, *words)[1]
    done = cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=text)
    assert done.stdout.count("(server dry run)") == len([each for each in yaml.safe_load_all(text) if each])


def test_the_manifest_is_the_chart(made: str, cluster: Cluster) -> None:
    with open(os.path.join(made, "nvc.yaml"), encoding="utf-8") as text:
        documents = [each for each in yaml.safe_load_all(text) if each]
    assert documents[0]["kind"] == "Namespace"
    assert documents[1:] == rendered(made, DRA)


def security(documents: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The security context of a container of nvc's DaemonSet, which shares the host's process ids."""
    (spec,) = (one["spec"]["template"]["spec"] for one in of_kind(documents, "DaemonSet"))
    assert spec["hostPID"] is True
    (found,) = (one["securityContext"] for one in spec["containers"] if one["name"] == name)
    return dict(found)


def test_without_privileges_nvcd_has_what_its_tracer_needs(made: str) -> None:
    """Whoever only runs the plugin has less. Kubernetes leaves out the CAP_ of names."""
    documents = rendered(made, DRA, "--set=privileged=false,openshift.scc=on")
    nvcd, plugin = security(documents, "nvcd"), security(documents, "plugin")
    names = set(nvcd["capabilities"]["add"])
    assert {name.removeprefix("CAP_") for name, _, _ in NEEDED} <= names
    numbers = mask(*(getattr(privileges, name) for name in names))
    assert numbers == PERMITTED["nvcd"] | mask(*(getattr(privileges, name) for name in MORE))
    assert "privileged" not in nvcd and nvcd["capabilities"]["drop"] == ["ALL"]
    assert nvcd["appArmorProfile"] == {"type": "Unconfined"}, "the default profile forbids mounts"
    assert set(plugin["capabilities"]["add"]) == names - MORE and plugin["allowPrivilegeEscalation"] is False
    (allowed,) = of_kind(documents, "SecurityContextConstraints")
    assert set(allowed["allowedCapabilities"]) == names and allowed["allowPrivilegeEscalation"] is True
    documents = rendered(made, DRA, "--set=privileged=false,openshift.scc=on,nvcd.enabled=false")
    (allowed,) = of_kind(documents, "SecurityContextConstraints")
    assert set(allowed["allowedCapabilities"]) == names - MORE and allowed["allowPrivilegeEscalation"] is False


def test_a_device_plugin_asks_for_neither_rights_nor_classes(made: str) -> None:
    documents = rendered(made, "--set=mode=device-plugin")
    assert "--mode=device-plugin" in str(of_kind(documents, "DaemonSet"))
    assert not [each for each in documents if each["kind"] in ("DeviceClass", "ClusterRole")]


WRONG = [
    "driverRoot=driver",
    "mode=both",
    "sizes[0].memory=10GiB",
    "sizes[0].name=small,sizes[0].core=3",
    "image.pullPolicy=Sometimes",
    "metrics.nvcdPort=0",
    "metrics.address=everywhere",
    "networkPolicy.from=monitoring",
    "deviceClasses.sliceParameters.polcy=fair",
    "driverroot=/",
    "nri.namespaces[0]=Not_One",
    "nri.index=5",
    "config.nvc.requireNvcd=true",
    "config.nvcd.on-excess=kill",
]


@pytest.mark.parametrize("values", WRONG)
def test_wrong_values_are_refused(made: str, values: str) -> None:
    code, said = template(made, f"--set={values}", check=False)
    name = values.split("=")[0].split("[")[0].split(".")[-1]
    assert code != 0 and "don't meet the specifications of the schema" in said, said
    assert name.split(".")[0] in said


def test_the_configuration_is_one_that_nvc_reads(made: str, scratch: str) -> None:
    sizes = "sizes[0].name=small,sizes[0].memory=10GiB,sizes[0].cores=25,sizes[0].isolation=kernel"
    more = "config.nvc.timeout=20,config.nvc.require-nvcd=true,config.nvcd.on-excess=stop"
    (found,) = of_kind(rendered(made, DRA, f"--set={sizes},{more}"), "ConfigMap")
    path = os.path.join(scratch, "config.toml")
    with open(path, "w", encoding="utf-8") as out:
        out.write(found["data"]["config.toml"])
    config = load(path)
    given = (("memory", "10GiB"), ("cores", "25"), ("isolation", "kernel"))
    assert config.vgpu_devices == (("small", ("all",), given),)
    assert (config.timeout, config.require_nvcd, config.nvcd_metrics) == (20, True, "0.0.0.0:9394")


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ("", "0.0.0.0"),
        ("networkPolicy.enabled=false", "127.0.0.1"),
        ("networkPolicy.from=null", "127.0.0.1"),
        ("hostNetwork=true", "127.0.0.1"),
        ("networkPolicy.enabled=false,metrics.address=10.0.0.7", "10.0.0.7"),
    ],
)
def test_only_who_is_named_reads_metrics(made: str, values: str, address: str) -> None:
    documents = rendered(made, DRA, *([f"--set={values}"] if values else []))
    assert f"--metrics-listen={address}:9395" in str(of_kind(documents, "DaemonSet"))
    assert f'metrics = "{address}:9394"' in str(of_kind(documents, "ConfigMap"))
    policies = of_kind(documents, "NetworkPolicy")
    assert bool(policies) is ("enabled=false" not in values)
    for policy in policies:
        rules = policy["spec"].get("ingress", [])
        assert all(rule["from"] == [{"podSelector": {}}] for rule in rules)
        assert bool(rules) is ("from" not in values)


def test_openshift_gets_a_constraint(made: str) -> None:
    found = of_kind(rendered(made, DRA, "--api-versions=security.openshift.io/v1"), "SecurityContextConstraints")
    assert [each["users"] for each in found] == [["system:serviceaccount:nvc:nvc"]]
    assert not of_kind(rendered(made, DRA), "SecurityContextConstraints")
