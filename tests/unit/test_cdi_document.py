"""Documents made from facts: what each device gets, in the lowest version that can say it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.cdi import CAPABILITIES, HOOK, device, document, schema_problems
from support.facts import IDENTITY, LIBS, UUID_0, facts, gpu

from nvc.base.errors import DeviceError, InternalError
from nvc.frontends.cdi.document import NodeStatus, Sorted
from nvc.frontends.cdi.stamp import Stamp, staleness, stamp_of_document, stamp_of_facts
from nvc.frontends.cdi.validate import problems
from nvc.model.facts import ControlNode, DeviceNode
from nvc.plan.ops import BindDeviceDirectory, BindInside

HOST = facts(driver_root="/", device_root="/")


def names(made: dict[str, Any]) -> list[str]:
    return [item["name"] for item in made["devices"]]


def paths(edits: dict[str, Any]) -> list[str]:
    return [node["path"] for node in edits["deviceNodes"]]


@pytest.mark.parametrize(
    "capabilities", [("utility",), ("compute",), CAPABILITIES, (*CAPABILITIES, "compat32")]
)
@pytest.mark.parametrize("hook", [HOOK, "/usr/bin/nvidia-cdi-hook"])
@pytest.mark.parametrize("simulated", [False, True])
def test_every_document_is_valid(capabilities: tuple[str, ...], hook: str, simulated: bool) -> None:
    made = document(facts(simulated=simulated), capabilities, hook_path=hook)
    assert schema_problems(made) == [] and problems(made) == []
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize(
    "op", [BindDeviceDirectory("/dev/nvidia-caps", "/dev/nvidia-caps"), BindInside("/a", "/b", IDENTITY)]
)
def test_what_no_document_can_say_is_not_left_out(op: BindDeviceDirectory | BindInside) -> None:
    """These need a container that is there."""
    with pytest.raises(InternalError, match=f"{op.target}: cannot be said in one"):
        Sorted((op,))


@pytest.mark.parametrize(
    ("wanted", "options", "version"),
    [
        (HOST, {"strategies": ("type-index",)}, "0.3.0"),
        (HOST, {"strategies": ("uuid",)}, "0.3.0"),
        (HOST, {"strategies": ("index",)}, "0.5.0"),
        (facts(), {"strategies": ("uuid",)}, "0.3.0"),
        (facts(device_root="/run/driver"), {"strategies": ("uuid",)}, "0.5.0"),
        (HOST, {"strategies": ("uuid",), "device_class": "gpu.slice"}, "0.6.0"),
    ],
)
def test_the_lowest_version_that_fits(wanted: Any, options: dict[str, Any], version: str) -> None:
    made = document(wanted, **options)
    assert made["cdiVersion"] == version and problems(made) == []


def test_mounts_are_read_only() -> None:
    for mount in document()["containerEdits"]["mounts"]:
        options = mount["options"]
        assert {"nosuid", "nodev", "rbind", "rprivate"} <= set(options)
        service = mount["containerPath"].startswith(("/run/", "/tmp/"))
        assert "ro" in options and ("noexec" in options or not service)


def test_nodes_never_permit_mknod() -> None:
    made = document(nodes={"/dev/nvidia1": NodeStatus(195, 1, 0o660, 0, 44)})
    every = [made["containerEdits"], *(item["containerEdits"] for item in made["devices"])]
    assert {node["permissions"] for edits in every for node in edits["deviceNodes"]} == {"rw"}
    first = device(made, "0")["deviceNodes"]
    assert first == [
        {
            "path": "/dev/nvidia1",
            "type": "c",
            "major": 195,
            "minor": 1,
            "fileMode": 0o660,
            "gid": 44,
            "permissions": "rw",
        }
    ]


def test_additional_gids_only_when_asked_for() -> None:
    nodes = {
        "/dev/nvidia1": NodeStatus(195, 1, 0o660, 0, 44),
        "/dev/nvidiactl": NodeStatus(195, 255, 0o666, 0, 44),
    }
    assert "additionalGids" not in json.dumps(document(nodes=nodes))
    made = document(nodes=nodes, additional_gids=True)
    assert device(made, "0")["additionalGids"] == [44] and "additionalGids" not in made["containerEdits"]
    assert made["cdiVersion"] == "0.7.0" and problems(made) == []


def test_a_node_that_all_share_is_every_devices() -> None:
    """As /dev/dxg under WSL."""
    node = DeviceNode("/dev/dxg", 10, 60)
    host = facts(controls=(ControlNode(node),), gpus=(gpu(0, UUID_0, node=node, proc_dir=""),))
    made = document(host)
    assert problems(made) == [] and paths(device(made, "0")) == paths(device(made, "all")) == ["/dev/dxg"]


def test_dri_nodes_come_with_graphics() -> None:
    host = facts(gpus=(gpu(0, UUID_0, dri_nodes=("/dev/dri/card1", "/dev/dri/renderD128")),))
    nodes = {"/dev/dri/card1": NodeStatus(226, 1, 0o660, 0, 44)}
    assert paths(device(document(host, nodes=nodes), "0")) == ["/dev/nvidia1", "/dev/dri/card1"]
    assert paths(device(document(host, ("compute",), nodes=nodes), "0")) == ["/dev/nvidia1"]


@pytest.mark.parametrize(
    ("bus_id", "named"), [("00000000:3B:00.0", "0000:3b:00.0"), ("00010002:01:00.0", "10002:01:00.0")]
)
def test_links_to_dri_nodes_as_udev_makes_them(bus_id: str, named: str) -> None:
    """One hook has those of all GPUs, since each call costs a container start 10 ms."""
    nodes = ("/dev/dri/card1", "/dev/dri/renderD128")
    host = facts(gpus=(gpu(0, UUID_0, bus_id=bus_id, dri_nodes=nodes),))
    wanted = [
        f"--link=../{node.rpartition('/')[2]}::/dev/dri/by-path/pci-{named}-{kind}"
        for node, kind in zip(nodes, ("card", "render"))
    ]
    (hook,) = hooks(document(host))
    place = hook["args"].index("create-device-links")
    assert hook["args"][place + 1 : place + 3] == wanted
    assert "create-device-links" not in hooks(document(host, ("compute",)))[0]["args"]


def test_the_profile_of_applications_comes_with_graphics() -> None:
    assert "update-application-profile" in hooks(document())[0]["args"]
    assert "update-application-profile" not in hooks(document(capabilities=("compute", "utility")))[0]["args"]


def test_a_device_that_is_none() -> None:
    """The driver's files without a GPU."""
    made = document(devices=(), none_device=True)
    assert names(made) == ["none"] and "deviceNodes" not in device(made, "none")
    assert made["containerEdits"]["mounts"] and problems(made) == []
    assert names(document(devices=("0",), none_device=True, strategies=("index",))) == ["0", "all", "none"]


def test_a_selection_of_devices() -> None:
    assert names(document(devices=("1:1",), strategies=("index",))) == ["1:1", "all"]
    assert names(document(devices=("0",), strategies=("index",), all_device=False)) == ["0"]


def test_no_document_without_a_device() -> None:
    with pytest.raises(DeviceError, match="no device"):
        document(facts(gpus=()))
    with pytest.raises(DeviceError, match="no device"):
        document(facts(gpus=(gpu(0, UUID_0, mig_capable=True, mig_enabled=True),)))


def hooks(made: dict[str, Any]) -> list[dict[str, Any]]:
    every = [made, *made["devices"]]
    return [hook for item in every for hook in item["containerEdits"].get("hooks", ())]


@pytest.mark.parametrize("hook_path", [HOOK, "/opt/nvidia-cdi-hook"])
@pytest.mark.parametrize("simulated", [False, True])
def test_every_hook_has_an_environment_and_an_absolute_path(hook_path: str, simulated: bool) -> None:
    """Without one of its own, runc gives a hook the image's environment."""
    found = hooks(document(facts(simulated=simulated), hook_path=hook_path))
    assert found
    for hook in found:
        assert hook["path"].startswith("/") and hook["hookName"] == "createContainer"
        assert hook["env"][0].startswith("PATH=/") and hook["args"][0] == hook_path.rpartition("/")[2]


def test_our_hook_takes_all_steps_in_one_process() -> None:
    steps = [
        "slice-memory", "create-symlinks", "enable-cuda-compat", "update-ldcache",
        "disable-device-node-modification", "update-application-profile",
    ]  # fmt: skip
    (hook,) = hooks(document())
    assert [word for word in hook["args"][1:] if not word.startswith("--")] == steps
    separate = hooks(document(hook_path="/usr/bin/nvidia-cdi-hook"))
    assert [hook["args"][1] for hook in separate] == steps
    separate = hooks(document(hook_path="/usr/bin/nvidia-ctk"))
    assert [hook["args"][:3] for hook in separate] == [["nvidia-ctk", "hook", step] for step in steps]
    (hook,) = hooks(document(hook_path="/usr/bin/nvidia-ctk", own_hook=True))
    assert hook["args"][:2] == ["nvc-cdi-hook", "slice-memory"]


def test_hooks_can_be_left_out() -> None:
    made = document(disabled_hooks=("slice-memory", "enable-cuda-compat", "update-ldcache"))
    assert [word for word in hooks(made)[0]["args"] if not word.startswith("--")] == [
        "nvc-cdi-hook", "create-symlinks", "disable-device-node-modification", "update-application-profile",
    ]  # fmt: skip


def test_libraries_have_their_names_without_links_too() -> None:
    """Only where no hook makes the links."""
    def places(made: Any) -> list[str]:
        return [mount["containerPath"] for mount in made["containerEdits"]["mounts"]]

    more = places(document(disabled_hooks=("create-symlinks",)))
    assert len(set(more)) == len(more)
    assert set(more) - set(places(document())) >= {f"{LIBS}/libcuda.so.1", f"{LIBS}/libnvidia-ml.so.1"}
    assert not {f"{LIBS}/libcuda.so.1", f"{LIBS}/libcuda.so"} & set(places(document()))


def test_the_stamp_tells_a_stale_document() -> None:
    stamp = stamp_of_document(document())
    assert stamp is not None and stamp == stamp_of_facts(facts())
    assert staleness(stamp, facts()) == ""
    assert "driver" in staleness(stamp, facts(driver_version="590.1"))
    assert "devices" in staleness(stamp, facts(gpus=facts().gpus[:1]))
    assert "devices" in staleness(stamp, facts(libraries=()))
    assert staleness(stamp, facts(ipcs=())) == ""  # services come and go
    assert staleness(stamp, facts(driver_root="/elsewhere")) == ""  # not the driver that was asked about


def test_documents_of_others_have_no_stamp() -> None:
    assert (
        stamp_of_document({"devices": [], "containerEdits": {"hooks": [{"env": ["NVC_CDI_STAMP=x"]}]}})
        is None
    )
    assert stamp_of_document({"devices": []}) is None
    assert Stamp("1.2", "ab", "/a,b").text() == "1.2,ab,/a,b"
