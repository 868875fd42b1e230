"""`nvc-cli doctor --kubernetes`: each fault of a node is made, named in one line, and gone once it is mended."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from support import CLEAN_ENV, run, until
from support.apiserver import ApiServer, claim, parameters, result
from support.doctor import Named, problems
from support.kubelet import DRIVER, NODE, Kubelet, Plugin, add

from nvc.kernel import LinuxKernel
from nvc.slices.store import claims, registry
from nvc.slices.store.claims import key_of

STRAY = "0b2e2f0e-0000-4000-8000-000000000000"


def doctor(plugin: Plugin, *words: str, api: bool = True) -> str:
    """The report of a run; without `api` it is not told where the API server is."""
    options = [f"--state-dir={plugin.state}", *([f"--kubeconfig={plugin.api.kubeconfig()}"] if api else [])]
    done = run(
        plugin.program.replace("nvc-kubelet-plugin", "nvc-cli"), "doctor", "--kubernetes", *options, *words,
        check=False, env=CLEAN_ENV,
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "this check has a bug" not in done.stdout, (
        done.stdout + done.stderr
    )
    failures = [one for one in problems(done.stdout) if one.line.startswith("failed")]
    assert done.returncode == (1 if failures else 0) or "cannot tell" in done.stdout, (
        done.stdout + done.stderr
    )
    return done.stdout


def named(plugin: Plugin, check: str, says: str, *words: str, status: str = "failed") -> Named:
    """The one problem that a check names."""
    text = doctor(plugin, *words)
    found = [one for one in problems(text) if f"{check}: " in one.line and says in one.line]
    assert len(found) == 1 and found[0].line.startswith(status), text
    return found[0]


def well(plugin: Plugin, *words: str) -> None:
    text = doctor(plugin, *words)
    assert not problems(text), text


def anew(plugin: Plugin, kubelet: Kubelet) -> None:
    """A successor of the plugin, as the DaemonSet makes one."""
    plugin.close()
    with open(plugin.log, "wb"):
        pass
    plugin.start()
    plugin.said(": ready")
    kubelet.register()
    until(lambda: "registered the driver" in plugin.said("registered the driver"))


def given(plugin: Plugin, kubelet: Kubelet, name: str = "part") -> dict[str, Any]:
    """A claim for a slice that is prepared."""
    made = add(plugin.api, claim(name, [result("gpu", "gpu-0", "4Gi", "25")]))
    assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""
    return made


@pytest.fixture(autouse=True)
def published(plugin: Plugin, api: ApiServer) -> None:
    plugin.said("registered the driver")
    api.wait(api.slices)


def test_all_is_well(plugin: Plugin, kubelet: Kubelet) -> None:
    given(plugin, kubelet)
    text = doctor(plugin, "--all", "--claim=ml/part")
    assert not problems(text), text
    for line in (
        "published are gpu-0, gpu-1",
        "serves dra",
        "claim ml/part has gpu-0",
        "1 claims are prepared",
    ):
        assert line in text, text


def test_the_plugin_was_killed(plugin: Plugin, kubelet: Kubelet) -> None:
    """Its sockets are still there: `kubernetes.plugin`."""
    plugin.kill()
    text = doctor(plugin, "kubernetes.plugin")
    assert len(problems(text)) == 2 and text.count("nobody listens there") == 2, text
    anew(plugin, kubelet)
    well(plugin)


def test_what_a_plugin_wrote_of_itself(plugin: Plugin, kubelet: Kubelet) -> None:
    """It is gone, is no record, or does not say where the API server is."""
    path = f"{plugin.state}/plugin.json"
    with open(path, encoding="utf-8") as file:
        record = json.load(file)

    def write(**fields: object) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(fields, file)

    os.rename(path, f"{plugin.state}/aside")
    assert named(plugin, "kubernetes.plugin", "plugin.json is missing")
    assert "not checked: first mend kubernetes.plugin" in doctor(plugin)
    write(version=1)
    assert named(plugin, "kubernetes.plugin", "plugin.json cannot be read: not as this version writes it")
    write(**{**record, "kubeconfig": ""})
    text = doctor(plugin, "kubernetes", api=False)  # outside of a pod: only what the node shows is told
    assert "cannot tell  kubernetes.api: the API server is not asked" in text
    assert "kubernetes.devices: not checked: first mend kubernetes.api" in text
    anew(plugin, kubelet)
    well(plugin)


def test_the_kubelet_refuses(plugin: Plugin, kubelet: Kubelet) -> None:
    kubelet.register(refusal="version v1.DRAPlugin is too new")
    plugin.said("refused")
    named(
        plugin,
        "kubernetes.registration",
        "the kubelet has refused the driver gpu.nvc.dev: version v1.DRAPlugin",
    )
    kubelet.register()
    until(lambda: not problems(doctor(plugin, "kubernetes.registration")))


def test_a_kubelet_that_looks_elsewhere(plugin: Plugin, kubelet: Kubelet) -> None:
    """Nobody has called the plugin that is started anew."""
    plugin.close()
    plugin.start()
    until(lambda: os.path.exists(f"{kubelet.registry}/{DRIVER}-reg.sock"))
    named(plugin, "kubernetes.registration", "the kubelet has not registered the driver gpu.nvc.dev")
    kubelet.register()
    until(lambda: not problems(doctor(plugin, "kubernetes.registration")))


def test_the_driver_is_gone(plugin: Plugin) -> None:
    """It is looked for where the plugin looks, not where config.toml says."""
    os.rename(f"{plugin.root}/usr", f"{plugin.root}/aside")
    found = named(plugin, "kubernetes.driver", f"the driver in {plugin.root} cannot be asked")
    assert found.commands == (f"nvc-cli --root {plugin.root} doctor driver nodes",)
    os.rename(f"{plugin.root}/aside", f"{plugin.root}/usr")
    well(plugin)


def test_the_hook_is_gone(plugin: Plugin, kubelet: Kubelet) -> None:
    """What the record names is looked for, and what CDI files name."""
    given(plugin, kubelet)
    path = f"{plugin.state}/plugin.json"
    with open(path, encoding="utf-8") as file:
        text = file.read()
    hook = json.loads(text)["hook_path"]
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(hook, "/opt/nvc/0.1/bin/nvc-cdi-hook"))
    assert named(plugin, "kubernetes.driver", "/opt/nvc/0.1/bin/nvc-cdi-hook is missing")
    (name,) = plugin.files()
    with open(f"{plugin.cdi}/{name}", encoding="utf-8") as file:
        document = file.read()
    with open(f"{plugin.cdi}/{name}", "w", encoding="utf-8") as file:
        file.write(document.replace(hook, "/opt/nvc/0.1/bin/nvc-cdi-hook"))
    assert named(plugin, "kubernetes.cdi", "names /opt/nvc/0.1/bin/nvc-cdi-hook, which is missing")
    anew(plugin, kubelet)
    well(plugin)


def test_the_api_server_answers_otherwise(plugin: Plugin, api: ApiServer) -> None:
    for status, says in ((500, "HTTP 500"), (401, "HTTP 401"), (404, "no resource.k8s.io/v1")):
        api.fail("GET /apis", status)
        assert named(plugin, "kubernetes.api", says)
        assert "kubernetes.devices: not checked: first mend kubernetes.api" in doctor(plugin)
    api.fail("", 0)
    well(plugin)


def test_what_is_published_is_gone(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    (slice,) = api.slices()
    api.fail("POST .*/resourceslices", 500)
    api.remove(f"/apis/resource.k8s.io/v1/resourceslices/{slice['metadata']['name']}")
    assert named(
        plugin, "kubernetes.devices", "the API server has no ResourceSlice of gpu.nvc.dev for node-a"
    )
    api.fail("", 0)
    api.wait(api.slices)
    well(plugin)


def changed(api: ApiServer, change: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Change what is published, and let the plugin change nothing until the returned call sets it back."""
    (slice,) = api.slices()
    path, before = f"/apis/resource.k8s.io/v1/resourceslices/{slice['metadata']['name']}", json.dumps(slice)
    api.fail("(POST|PUT|DELETE) .*/resourceslices", 500)
    change(slice["spec"])
    api.put(path, slice)

    def back() -> None:
        api.put(path, json.loads(before))
        api.fail("", 0)

    return back


def test_other_devices_are_published(plugin: Plugin, api: ApiServer) -> None:
    def other(spec: dict[str, Any]) -> None:
        spec["devices"][1]["name"] = "gpu-7"
        spec["devices"][0]["attributes"]["uuid"]["string"] = "GPU-of-another"

    back = changed(api, other)
    for says in (
        "gpu-1 is published as nothing, and is GPU-",
        "gpu-7 is published as GPU-",
        "gpu-0 is published as GPU-of-another, and is GPU-",
    ):
        assert named(plugin, "kubernetes.devices", says)
    back()
    well(plugin)


def test_a_taint(plugin: Plugin, api: ApiServer) -> None:
    def taint(spec: dict[str, Any]) -> None:
        spec["devices"][0]["taints"] = [{"key": "gpu.nvc.dev/xid", "value": "79", "effect": "NoSchedule"}]

    back = changed(api, taint)
    named(
        plugin, "kubernetes.devices", "gpu-0 has the taint gpu.nvc.dev/xid=79:NoSchedule", status="warning"
    )
    back()
    well(plugin)


def test_a_cluster_that_counts_no_capacity(plugin: Plugin, api: ApiServer) -> None:
    """Its API server drops the fields of a feature that is off."""

    def drop(spec: dict[str, Any]) -> None:
        for device in spec["devices"]:
            del device["allowMultipleAllocations"]

    back = changed(api, drop)
    assert named(plugin, "kubernetes.features", "has dropped what says that gpu-0 can be shared")
    back()
    well(plugin)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_cdi_file(plugin: Plugin, kubelet: Kubelet, damage: str) -> None:
    given(plugin, kubelet)
    (name,) = plugin.files()
    if damage == "missing":
        os.unlink(f"{plugin.cdi}/{name}")
    else:
        with open(f"{plugin.cdi}/{name}", "w", encoding="ascii") as file:
            file.write("{")
    assert named(plugin, "kubernetes.cdi", f"{name} of claim ml/part is {damage}")
    anew(plugin, kubelet)
    well(plugin, "--claim=ml/part")


def test_a_claim_that_is_kept_and_cannot_be_read(plugin: Plugin, kubelet: Kubelet) -> None:
    made = given(plugin, kubelet)
    path = f"{plugin.state}/claims/{made['metadata']['uid']}.json"
    with open(path, "w", encoding="ascii") as file:
        file.write("{}")
    found = named(plugin, "kubernetes.claims", f"{path} cannot be read")
    run("sh", "-c", found.commands[0])
    assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""
    well(plugin)


def test_slices_that_are_gone(plugin: Plugin, kubelet: Kubelet) -> None:
    made = given(plugin, kubelet)
    claims.release(LinuxKernel(), made["metadata"]["uid"])
    assert named(plugin, "kubernetes.claims", "the slice of request gpu of claim ml/part is gone")
    anew(plugin, kubelet)
    well(plugin, "--claim=ml/part")


def test_what_is_left_without_a_claim(plugin: Plugin, kubelet: Kubelet) -> None:
    """A CDI file that the plugin does not remember: its successor removes it."""
    given(plugin, kubelet)
    with open(f"{plugin.cdi}/k8s.gpu.nvc.dev-slice-{STRAY}.json", "w", encoding="ascii") as file:
        file.write("{}")
    named(plugin, "kubernetes.leftovers", "are left of claims that are not prepared: 1", status="warning")
    assert f"seen    claim {STRAY}" in doctor(plugin)
    anew(plugin, kubelet)
    well(plugin)


def test_claims_that_no_container_can_have(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """For each the cause that its pod waits for, and other checks wait for that one."""
    assert named(plugin, "claim.allocation", "the API server has no claim ml/none", "--claim=ml/none")
    assert "claim.prepared: not checked: first mend claim.allocation" in doctor(plugin, "--claim=ml/none")
    waiting = claim("waiting", [result("gpu", "gpu-0", "4Gi")])
    del waiting["status"]["allocation"]
    add(api, waiting)
    assert named(plugin, "claim.allocation", "claim ml/waiting is not allocated", "--claim=ml/waiting")
    other = claim("other", [{**result("gpu", "gpu-0", "4Gi"), "pool": "node-b"}])
    add(api, other)
    assert named(plugin, "claim.allocation", f"has gpu-0 of node node-b, this is {NODE}", "--claim=ml/other")
    wrong = claim("wrong", [result("gpu", "gpu-0", "4Gi")], config=[parameters(polcy="fair")])
    add(api, wrong)
    assert named(plugin, "claim.allocation", "polcy: no such field of SliceParameters", "--claim=ml/wrong")
    made = add(api, claim("part", [result("gpu", "gpu-0", "4Gi")]))
    assert named(plugin, "claim.prepared", "claim ml/part is not prepared", "--claim=ml/part")
    assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""
    well(plugin, "--claim=ml/part")


def test_a_slice_with_another_limit(plugin: Plugin, kubelet: Kubelet) -> None:
    """Its quota is another slice's."""
    made = given(plugin, kubelet)
    other = add(plugin.api, claim("other", [result("gpu", "gpu-0", "2Gi", "25")]))
    assert kubelet.prepare(other)[other["metadata"]["uid"]].error == ""
    quotas = [
        f"{registry.base_directory()}/{key_of(one['metadata']['uid'] + '-0')}/quota" for one in (other, made)
    ]
    run("cp", *quotas)
    assert named(plugin, "kubernetes.claims", "has 2048 MiB, it was allocated 4096 MiB")
    anew(plugin, kubelet)
    well(plugin, "--claim=ml/part")
