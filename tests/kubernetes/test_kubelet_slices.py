"""Slices of claims in containers: what nvc-kubelet-plugin prepares, applied as a container runtime does."""

from __future__ import annotations

import os
import shutil
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support import GIB, run, until
from support.apiserver import claim, parameters, result
from support.claimed import edit
from support.hook import ask
from support.kubelet import Kubelet, Plugin, add
from support.plans import mounts
from support.rootfs import LIBS
from support.vgpu import Inside, cli

from nvc.kernel import LinuxKernel
from nvc.model.slices import quota
from nvc.slices.client.presence import socket_path
from nvc.slices.policy.policies import DevicePolicy, write
from nvc.slices.store import claims, registry
from nvc.slices.store.status import SliceStatus, statuses
from nvc.testing.sim.report import report

OUT_OF_MEMORY = 2


def prepared(plugin: Plugin, made: dict[str, Any]) -> list[str]:
    """Names of the CDI devices of a claim, one for each request."""
    add(plugin.api, made)
    entry = plugin.kubelet.prepare(made)[made["metadata"]["uid"]]
    assert entry.error == ""
    return [name for device in entry.devices for name in device.cdi_device_ids]


def slices() -> list[SliceStatus]:
    found, warnings = statuses(LinuxKernel())
    assert warnings == ()
    return list(found)


def limits(one: SliceStatus) -> list[int]:
    with open(one.entry.quota, "rb") as file:
        return [device.memory_limit for device in quota.read(file.fileno())]


def ledgers() -> list[str]:
    """Mounts of ledgers that this host sees."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [line.split()[4] for line in file if " nvc-ledger " in line]


def test_containers_of_one_request_share_its_slice(
    plugin: Plugin, kubelet: Kubelet, runc_bundle: Any, tool: str, launcher: str
) -> None:
    made = claim("part", [result("gpu", "gpu-0", "4Gi", "50")])
    (name,) = prepared(plugin, made)
    (before,) = slices()
    assert before.alive and before.pids == () and before.name == "ml/part" and limits(before) == [4 * GIB]
    one, other = edit(plugin, runc_bundle(), name), edit(plugin, runc_bundle(), name)
    with one.created("runc") as first, other.created("runc") as second:
        first.start()
        second.start()
        (now,) = slices()
        assert {first.pid, second.pid} <= set(now.pids)
        inside, beside = Inside(first, tool).start(), Inside(second, tool).start()
        inside.ask("alloc a 2g")
        assert beside.code("alloc a 1900m") == OUT_OF_MEMORY
        inside.end()
        beside.ask("alloc a 1900m")
        (now,) = slices()
        assert 1900 << 20 <= now.devices[0].used < 4 * GIB and now.problem == ""
        done = cli(launcher, "set", now.short, "--memory", "8GiB", check=False)
        assert "its limits are those of the claim ml/part" in done.stderr
        beside.end()
    (after,) = slices()
    assert after.alive and after.entry.key == before.entry.key
    assert ledgers() == [f"{after.entry.directory}/ledger"]
    assert kubelet.unprepare(made)[made["metadata"]["uid"]].error == ""
    assert slices() == [] and ledgers() == [] and not os.path.exists(after.entry.directory)


def test_a_claim_that_is_deleted_under_its_pod_stays(
    plugin: Plugin, kubelet: Kubelet, runc_bundle: Any
) -> None:
    """Else its memory would be given away, and nvcd would not know its processes."""
    made, unused = (claim(name, [result("gpu", "gpu-0", "1Gi", "50")]) for name in ("part", "other"))
    (name,) = prepared(plugin, made)
    prepared(plugin, unused)
    with edit(plugin, runc_bundle(), name).created("runc") as container:
        container.start()
        for one in (made, unused):
            plugin.api.remove(f"/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/{one['metadata']['name']}")
        assert plugin.close() == 0
        plugin.start()
        plugin.said(f"claim {unused['metadata']['uid']} is gone from the API server")
        (now,) = slices()
        assert now.entry.claim == "ml/part" and container.pid in now.pids
    assert plugin.close() == 0
    plugin.start()
    plugin.said(f"claim {made['metadata']['uid']} is gone from the API server")
    assert slices() == [] and ledgers() == []


@pytest.mark.driver(gpus=2, driver_version="615.71.09")
def test_isolation_by_the_kernel(plugin: Plugin, runc_bundle: Any, tool: str, launcher: str) -> None:
    """A container that goes around the shim is held to the claim's memory."""
    made = claim("held", [result("gpu", "gpu-0", "1Gi")])
    made["status"]["allocation"]["devices"]["config"] = [parameters(isolation="kernel")]
    (name,) = prepared(plugin, made)
    bundle = edit(plugin, runc_bundle(), name)
    bundle.unified = True
    bundle.config["linux"]["cgroupsPath"] = f"/nvc-claim-{os.getpid()}"
    with bundle.created("runc") as container:
        container.start()
        shutil.copy(tool, f"{bundle.rootfs}/tmp/vgpu_tool")
        commands = "init\\nprimary 0\\nalloc a 1g\\nalloc b 256m\\n"
        said = container.exec(f"printf '{commands}' | /tmp/vgpu_tool {LIBS}/nvc/real-libcuda.so.1").stdout
        assert [line.split()[0] for line in said.splitlines()] == ["0", "0", str(OUT_OF_MEMORY), "0"]
        assert "limited by shim, kernel" in cli(launcher, "show", str(container.pid)).stdout


def test_one_after_another_and_all_at_once(plugin: Plugin, runc_bundle: Any) -> None:
    """A container of all requests has one slice with all devices, and none beside who has one of them."""
    names = prepared(plugin, claim("two", [result("a", "gpu-0", "1Gi"), result("b", "gpu-1", "2Gi")]))
    assert sorted(map(limits, slices())) == [[GIB], [GIB, 2 * GIB], [2 * GIB]]
    single, both = edit(plugin, runc_bundle(), names[0]), edit(plugin, runc_bundle(), *names)
    with single.created("runc"):
        done = both.run("runc", "true", check=False)
        assert done.returncode != 0
        assert "another container has a part of this one's claims" in done.stderr, done.stderr
    with both.created("runc") as container:
        container.start()
        (user,) = (one for one in slices() if one.pids)
        assert limits(user) == [GIB, 2 * GIB] and len(ledgers()) == 3


def test_a_whole_device_beside_a_slice(plugin: Plugin, runc_bundle: Any) -> None:
    """That container's slice is its own, since it has more than the claim's; nobody else may have a part of it."""
    names = prepared(plugin, claim("mixed", [result("a", "gpu-0", "1Gi"), result("b", "gpu-1")]))
    bundle, alone = edit(plugin, runc_bundle(), *names), edit(plugin, runc_bundle(), names[0])
    with bundle.created("runc") as container:
        container.start()
        (own,) = (one for one in slices() if one.pids)
        assert sorted(limits(own))[0] == GIB and not own.entry.claim and own.entry.holds
        done = alone.run("runc", "true", check=False)
        assert done.returncode != 0 and "another container has a part of this one's claims" in done.stderr


HOSTILE = {
    "NVC_VGPU_MEMORY": "70GiB", "NVC_VGPU_CORES": "100", "NVC_VGPU_POLICY": "native", "NVC_VGPU_WEIGHT": "9",
    "NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all", "CUDA_DEVICE_MEMORY_LIMIT": "70g",
    "CUDA_DEVICE_SM_LIMIT": "100", "GPU_CORE_UTILIZATION_POLICY": "disable", "CGPU_DISABLE": "true",
    "ALIYUN_COM_GPU_MEM_CONTAINER": "70", "ALIYUN_COM_GPU_MEM_DEV": "80", "LD_LIBRARY_PATH": "/tmp",
    "CUDA_VISIBLE_DEVICES": "0,1", "LD_PRELOAD": "/tmp/none.so",
}  # fmt: skip


def test_variables_change_nothing(plugin: Plugin, runc_bundle: Any, tool: str) -> None:
    """Of nvc, NVIDIA, HAMi and cGPU, all at once."""
    (name,) = prepared(plugin, claim("part", [result("gpu", "gpu-0", "1Gi", "25")]))
    bundle = edit(plugin, runc_bundle(), name)
    ask(bundle, **HOSTILE)
    with bundle.created("runc") as container:
        container.start()
        (one,) = slices()
        assert limits(one) == [GIB] and one.devices[0].cores == 25 and one.pids
        inside = Inside(container, tool).start()
        assert inside.code("alloc a 1g") == OUT_OF_MEMORY
        inside.end()
        nodes = [line for line in container.exec("ls /dev").stdout.split() if line.startswith("nvidia")]
        assert "nvidia0" in nodes and "nvidia1" not in nodes


def test_variables_make_no_slice_of_a_whole_gpu(plugin: Plugin, runc_bundle: Any) -> None:
    (name,) = prepared(plugin, claim("whole", [result("gpu", "gpu-1")]))
    bundle = edit(plugin, runc_bundle(), name)
    ask(bundle, **HOSTILE)
    with bundle.created("runc") as container:
        container.start()
        assert slices() == []
        assert not any("/nvc/quota" in line for line in mounts(container.pid))
        assert os.path.exists(f"/proc/{container.pid}/root{LIBS}")


def test_a_plugin_that_starts_again_goes_on_with_slices(
    plugin: Plugin, kubelet: Kubelet, runc_bundle: Any, tool: str
) -> None:
    """Containers that run notice nothing; what another process began, and was killed, is made anew or removed."""
    made = claim("part", [result("gpu", "gpu-0", "4Gi")])
    (name,) = prepared(plugin, made)
    (one,) = slices()
    quota_before = os.stat(one.entry.quota)
    with edit(plugin, runc_bundle(), name).created("runc") as container:
        container.start()
        inside = Inside(container, tool).start()
        inside.ask("alloc a 2g")
        plugin.kill()
        leaked = f"{registry.base_directory()}/1{'0' * 8}-1-1-1"
        run("cp", "-r", one.entry.directory, leaked)
        about = f"{leaked}/about"
        with open(about, encoding="ascii") as file:
            text = file.read()
        with open(about, "w", encoding="ascii") as file:
            file.write(text.replace(made["metadata"]["uid"], "0b2e2f0e-0000-4000-8000-000000000000"))
        plugin.start()
        until(lambda: not os.path.exists(leaked))
        kubelet.register()
        assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""
        (now,) = slices()
        after = os.stat(now.entry.quota)
        assert (after.st_ino, now.pids != ()) == (quota_before.st_ino, True)
        assert inside.code("alloc b 2g") == OUT_OF_MEMORY
        inside.end()
    assert len(ledgers()) == 1


def test_a_slice_that_is_gone_gives_nothing(plugin: Plugin, kubelet: Kubelet, runc_bundle: Any) -> None:
    """A container that starts from a document that was removed meanwhile has a slice of its own at most."""
    made = claim("part", [result("gpu", "gpu-0", "1Gi")])
    (name,) = prepared(plugin, made)
    bundle = edit(plugin, runc_bundle(), name)
    kubelet.unprepare(made)
    with bundle.created("runc") as container:
        container.start()
        (one,) = slices()
        assert limits(one) == [GIB] and not one.entry.claim
    until(lambda: not any(one.alive for one in slices()))


@pytest.mark.parametrize("broken", ["ready", "ledger", "about"])
def test_a_slice_that_is_not_whole_is_not_given(
    plugin: Plugin, kubelet: Kubelet, runc_bundle: Any, broken: str
) -> None:
    """Until the plugin has made it whole."""
    made = claim("part", [result("gpu", "gpu-0", "1Gi")])
    (name,) = prepared(plugin, made)
    (one,) = slices()
    bundle = edit(plugin, runc_bundle(), name)
    if broken == "ledger":
        run("umount", f"{one.entry.directory}/ledger")
    elif broken == "ready":
        os.unlink(f"{one.entry.directory}/ready")
    else:
        with open(f"{one.entry.directory}/about", "w", encoding="ascii") as file:
            file.write("nonsense")
    done = bundle.run("runc", "true", check=False)
    assert done.returncode != 0 and "vgpu error" in done.stderr, done.stderr
    if broken != "about":
        assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""
        bundle.run("runc", "true")


def test_without_the_right_to_mount_one_container_at_a_time(
    plugin: Plugin, kubelet: Kubelet, runc_bundle: Any
) -> None:
    """As in a container that is not privileged."""
    plugin.close()
    plugin.wrapper = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--")
    plugin.start()
    plugin.said("only one container at a time")
    kubelet.register()
    made = claim("part", [result("gpu", "gpu-0", "1Gi")])
    (name,) = prepared(plugin, made)
    assert slices() == [] and ledgers() == []
    one, other = edit(plugin, runc_bundle(), name), edit(plugin, runc_bundle(), name)
    with one.created("runc"):
        (own,) = slices()
        assert limits(own) == [GIB] and not own.entry.claim
        # Its pod is told of it all the same.
        assert claims.holds_by_slice()[own.entry.key] == [f"{made['metadata']['uid']}-0"]
        done = other.run("runc", "true", check=False)
        assert done.returncode != 0 and "another container has a part of this one's claims" in done.stderr
    until(lambda: not any(one.alive for one in slices()))
    with other.created("runc"):
        pass


@contextmanager
def nvcd_that_keeps_time() -> Iterator[None]:
    """What answers as an nvcd does that uses the driver's scheduler, for which there is none here."""

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if self.rfile.readline():
                self.wfile.write(b'{"problem": null}\n')

    os.makedirs(os.path.dirname(socket_path()), exist_ok=True)
    with socketserver.ThreadingUnixStreamServer(socket_path(), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield
        finally:
            server.shutdown()
            os.unlink(socket_path())


def test_more_memory_than_there_is_where_idle_slices_leave(plugin: Plugin, driver: str) -> None:
    """A GPU of 81559 MiB, for slices of twice that. Elsewhere the scheduler counts what is there."""

    def published() -> tuple[str, str, str]:
        (slice,) = plugin.api.slices()
        gpu = slice["spec"]["devices"][0]
        memory, more = gpu["capacity"]["memory"], gpu["attributes"].get("oversubscription", {"string": ""})
        return memory["value"], memory["requestPolicy"]["default"], more["string"]

    uuid = report(driver).gpus[0].uuid
    try:
        for idle, cause in ((0, "idle-suspend is off"), (60, "nvcd is not running")):
            write(uuid, DevicePolicy(oversubscribe=200, idle_s=idle))
            plugin.kill()
            plugin.start()
            plugin.said(f"gpu-0: slices may have 100% of its memory, less than its policy says: {cause}")
            until(lambda wanted=f"refused: {cause}": published() == ("81559Mi", "81559Mi", wanted))
        with nvcd_that_keeps_time():
            plugin.kill()
            plugin.start()
            plugin.said("gpu-0: slices may have 200% of its memory\n")
            until(lambda: published() == ("163118Mi", "81559Mi", "200%"))
            plugin.kubelet.register()
            for name in ("one", "two"):
                prepared(plugin, claim(name, [result("gpu", "gpu-0", "79Gi", "30")]))
            stays = add(plugin.api, claim("stays", [result("gpu", "gpu-0", "1Gi", "9")], config=[parameters(
                idleSuspend="off",
            )]))  # fmt: skip
            said = plugin.kubelet.prepare(stays)[stays["metadata"]["uid"]].error
            assert "slices of gpu-0 have to leave it for others" in said, said
    finally:
        write(uuid, DevicePolicy())
