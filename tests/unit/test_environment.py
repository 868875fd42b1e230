"""From a container's variables and mounts to a request, by the table of docs/hooks.md."""

from __future__ import annotations

from typing import Any

import pytest

from nvc.base.errors import InputError
from nvc.model.request import Request
from nvc.request.config import Config
from nvc.request.environment import VOLUMES, request_from, slice_request
from nvc.request.oci import Container, Mount

ALL = Config().supported_capabilities
#: An image from before NVIDIA_REQUIRE_CUDA.
LEGACY = {"CUDA_VERSION": "10.2.89"}


def asked(
    environment: dict[str, str], config: Config | None = None, privileged: bool = False, mounts: Any = ()
) -> Request | None:
    """The request of a container with these variables."""
    container = Container("/r", environment, privileged, tuple(Mount(*mount) for mount in mounts))
    return request_from(container, config or Config())


def request(environment: dict[str, str], *arguments: Any, **more: Any) -> Request:
    """The same where there must be one; it asks for every device unless it says otherwise."""
    found = asked({"NVIDIA_VISIBLE_DEVICES": "all", **environment}, *arguments, **more)
    assert found is not None
    return found


def refusal(environment: dict[str, str], *arguments: Any, **more: Any) -> str:
    """The one line of an error."""
    with pytest.raises(InputError) as raised:
        asked({"NVIDIA_VISIBLE_DEVICES": "all", **environment}, *arguments, **more)
    text = str(raised.value)
    assert text.isprintable() and len(text) < 500, text
    return text


@pytest.mark.parametrize(
    "value",
    [
        "-1", "--help", "0\n1", "0;id", "GPU-\u00e9", "x" * 81, "\n" * (1 << 20) + "x\ny",
        ",".join(map(str, range(4097))), "\ud800",
    ],
)  # fmt: skip
def test_hostile_devices(value: str) -> None:
    assert refusal({"NVIDIA_VISIBLE_DEVICES": value}).startswith("input error: NVIDIA_VISIBLE_DEVICES: ")


def test_cdi_names_are_for_others() -> None:
    text = refusal({"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=0"})
    assert "nvidia.com/gpu=0: a CDI device; " in text and "nvc-runtime" in text


def test_environment_of_the_unprivileged() -> None:
    strict = Config(accept_environment_unprivileged=False)
    for environment in ({"NVIDIA_VISIBLE_DEVICES": "0"}, {"NVIDIA_VISIBLE_DEVICES": "-rubbish"}, LEGACY):
        notes: list[str] = []
        assert request_from(Container("/r", environment), strict, notes) is None
        assert notes == ["NVIDIA_VISIBLE_DEVICES is ignored: the container is not privileged"]
    assert request({"NVIDIA_VISIBLE_DEVICES": "0"}, strict, privileged=True).devices == ("0",)
    assert request({"NVIDIA_IMEX_CHANNELS": "1"}, strict, privileged=True).imex_channels == (1,)


def volume(tail: str, source: str = "/dev/null", bind: bool = True) -> tuple[str, str, bool]:
    return source, f"{VOLUMES}/{tail}", bind


def test_volume_mounts() -> None:
    config = Config(accept_volume_mounts=True, accept_environment_unprivileged=False)
    mounts = [volume("GPU-1"), volume("2/"), volume("imex/5"), ("/dev/null", "/x"), volume("3", "/dev/zero")]
    found = request({}, config, mounts=mounts)
    assert (found.devices, found.imex_channels) == (("GPU-1", "2"), (5,))
    assert request({}, config, mounts=[volume("all"), volume("0")]).devices == ("all",)
    assert asked({}, config, mounts=[volume("all", bind=False)]) is None  # its source need not be the host's
    assert asked({}, config, mounts=[volume("void")]) is None
    assert asked({"NVIDIA_VISIBLE_DEVICES": "all"}, config, mounts=[volume("imex/5")]) is None
    # Not accepted: they are mounts like any other.
    assert request({}, mounts=mounts).devices == ("all",)
    assert asked({}, mounts=mounts) is None


@pytest.mark.parametrize("tail", ["-x", "a b", "x" * 100, "../../etc/\npasswd"])
def test_hostile_volume_mounts(tail: str) -> None:
    config = Config(accept_volume_mounts=True)
    if tail.startswith(".."):  # leaves the directory: not a request at all
        assert asked({}, config, mounts=[volume(tail)]) is None
    else:
        assert refusal({}, config, mounts=[volume(tail)]).startswith("input error: volume mount: ")


def test_cdi_volume_mounts_are_for_others() -> None:
    config = Config(accept_volume_mounts=True)
    for tail in ("cdi/nvidia.com/gpu/0", "cdi/nvidia.com/gpu=0"):
        assert "a CDI device; " in refusal({}, config, mounts=[volume(tail)])


@pytest.mark.parametrize(
    ("value", "legacy", "other"),
    [
        (None, ALL, ("compute", "utility")),
        ("", ("compute", "utility"), ("compute", "utility")),
        (" , ", ("compute", "utility"), ("compute", "utility")),
        ("all", ALL, ALL),
        ("video,all", ALL, ALL),
        (" video, utility,video", ("utility", "video"), ("utility", "video")),
        ("compat32", ("compat32",), ("compat32",)),
    ],
)
def test_driver_capabilities(value: str | None, legacy: Any, other: Any) -> None:
    given = {} if value is None else {"NVIDIA_DRIVER_CAPABILITIES": value}
    assert request({**given, **LEGACY}).capabilities == legacy
    assert request(given).capabilities == other


def test_driver_capabilities_are_bounded_by_the_configuration() -> None:
    config = Config(supported_capabilities=("utility", "video"))
    assert request({}, config).capabilities == ("utility",)
    assert request({"NVIDIA_DRIVER_CAPABILITIES": "all"}, config).capabilities == ("utility", "video")
    assert request(LEGACY, config).capabilities == ("utility", "video")
    text = refusal({"NVIDIA_DRIVER_CAPABILITIES": "utility,compute"}, config)
    assert "unsupported capabilities found in 'utility,compute' (allowed 'utility,video')" in text


@pytest.mark.parametrize(
    "value", ["Compute", "compute,root", "-compute", "compute\nutility", "x" * (1 << 20)]
)
def test_hostile_driver_capabilities(value: str) -> None:
    assert "unsupported capabilities found in '" in refusal({"NVIDIA_DRIVER_CAPABILITIES": value})


def test_requirements() -> None:
    several = {
        "NVIDIA_REQUIRE_CUDA": "cuda>=12 brand=tesla",
        "NVIDIA_REQUIRE_X": "arch>7",
        "NVIDIA_REQUIRE_NO": "",
    }
    assert request(several).requirements == ("cuda>=12 brand=tesla", "arch>7")
    assert request({"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all"}).requirements == ()
    assert request(LEGACY).requirements == ("cuda>=10.2",)
    assert request({**LEGACY, "NVIDIA_REQUIRE_CUDA": "cuda>=9"}).requirements == ("cuda>=9",)
    assert request({"CUDA_VERSION": ""}).requirements == ()
    assert request(several, Config(disable_require=True)).requirements == ()


@pytest.mark.parametrize(
    ("value", "disabled"),
    [("1", True), ("true", True), ("T", True), ("0", False), ("yes", False), ("", False)],
)
def test_disable_require(value: str, disabled: bool) -> None:
    found = request({"NVIDIA_REQUIRE_CUDA": "cuda>=99", "NVIDIA_DISABLE_REQUIRE": value})
    assert (found.requirements == ()) is disabled


@pytest.mark.parametrize(
    "environment",
    [
        {"NVIDIA_REQUIRE_X": "cuda>=1\ncuda>=2"},
        {"NVIDIA_REQUIRE_X": "x" * (1 << 20)},
        {"NVIDIA_REQUIRE_X": "cuda>=\u0661"},
        {"NVIDIA_REQUIRE_" + "X" * (1 << 20): "\n"},
        {f"NVIDIA_REQUIRE_{number}": "cuda>=1" for number in range(33)},
        {"CUDA_VERSION": "x" * (1 << 20)},
        {"CUDA_VERSION": "12"},
        {"CUDA_VERSION": "-1.2"},
        {"CUDA_VERSION": "1.2345678"},
    ],
)
def test_hostile_requirements(environment: dict[str, str]) -> None:
    refusal(environment)


def test_mig_rights_take_privilege() -> None:
    for name, field in (("CONFIG", "mig_config"), ("MONITOR", "mig_monitor")):
        variable = f"NVIDIA_MIG_{name}_DEVICES"
        text = refusal({variable: "all"})
        assert f"cannot set MIG_{name}_DEVICES in non privileged container" in text
        assert getattr(request({variable: "all"}, privileged=True), field) == "all"
        assert getattr(request({variable: "0,1"}, privileged=True), field) == "0,1"
        for nothing in ("", ",", "none", "void", "void,all"):
            assert getattr(request({variable: nothing}), field) == ""


def test_imex_channels() -> None:
    assert request({"NVIDIA_IMEX_CHANNELS": "0, 17,0"}).imex_channels == (0, 17)
    for nothing in ("", "all", "none", "void"):
        assert request({"NVIDIA_IMEX_CHANNELS": nothing}).imex_channels == ()
    ignoring = Config(ignore_imex_channel_requests=True)
    assert request({"NVIDIA_IMEX_CHANNELS": "rubbish"}, ignoring).imex_channels == ()
    for bad in ("-1", "x", "1048576", "1" * 30, "1.5"):
        assert "NVIDIA_IMEX_CHANNELS" in refusal({"NVIDIA_IMEX_CHANNELS": bad})


@pytest.mark.parametrize(
    "name",
    [
        "NVC_VGPU_MEMORY", "NVC_VGPU_CORES_0", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT",
        "ALIYUN_COM_GPU_MEM_CONTAINER", "NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST",
    ],
)  # fmt: skip
def test_a_part_of_a_gpu_is_not_turned_into_a_whole_one(name: str) -> None:
    text = refusal({name: "1" * 1000}, Config(vgpu_variables="refuse"))
    assert name in text and "vgpu-variables" in text
    assert name in refusal({name: "1" * 1000})
    assert request({name: "4g"}, Config(vgpu_variables="ignore")).devices == ("all",)
    assert asked({name: "4g"}) is None  # no GPU, no part of one
    assert request({name: ""}).devices == ("all",)


def test_the_operator_has_the_last_word_on_slices() -> None:
    """A default for those that ask for nothing, a bound for those that ask."""
    for config, size in (
        (Config(vgpu_memory="2GiB"), 2),
        (Config(vgpu_memory="2GiB", vgpu_variables="ignore"), 2),
        (Config(vgpu_memory_max="8GiB"), 8),
        (Config(vgpu_memory="2GiB", vgpu_memory_max="8GiB"), 2),
    ):
        found = request({}, config).vgpu
        assert found is not None and found.memory[0].bytes == size << 30
    found = request({"NVC_VGPU_MEMORY": "9g"}, Config(vgpu_memory="2GiB", vgpu_memory_max="8GiB")).vgpu
    assert (
        found is not None and found.memory[0].bytes == 9 << 30
    )  # held against the bound when GPUs are known
    assert found.largest is not None and found.largest.bytes == 8 << 30


def test_the_operator_has_the_last_word_on_time() -> None:
    config = Config(vgpu_cores=25, vgpu_cores_max=50, vgpu_weight_max=8, vgpu_policy="fair")
    silent = request({}, config).vgpu
    assert silent is not None and silent.policy is not None
    found = [share.value for share in silent.cores], silent.policy.text, silent.most_cores
    assert found == ([25], "fair", 50)
    capped = request({"NVC_VGPU_CORES": "40"}, config).vgpu
    assert capped is not None and [share.value for share in capped.cores] == [40] and capped.policy is None
    heavy = request({"NVC_VGPU_WEIGHT": "9"}, config).vgpu
    assert heavy is not None and (heavy.weight.value, heavy.most_weight) == (9, 8)  # type: ignore[union-attr]
    assert [share.text for share in heavy.cores] == ["25"]
    both = request({"NVC_VGPU_CORES": "40"}, Config(vgpu_memory="2GiB")).vgpu
    assert both is not None and both.memory[0].bytes == 2 << 30


def test_the_operator_isolates_every_slice_that_has_a_size() -> None:
    config = Config(vgpu_isolation="kernel")
    assert request({"NVC_VGPU_MEMORY": "4g"}, config).vgpu.isolation == "kernel"  # type: ignore[union-attr]
    assert request({}, Config(vgpu_isolation="kernel", vgpu_memory="2GiB")).vgpu.isolation == "kernel"  # type: ignore[union-attr]
    assert request({"NVC_VGPU_CORES": "40"}, config).vgpu.isolation == ""  # type: ignore[union-attr]
    assert request({}, config).vgpu is None
    mine = {"NVC_VGPU_MEMORY": "4g", "NVC_VGPU_ISOLATION": "mig"}
    assert request(mine, config).vgpu.isolation == "mig"  # type: ignore[union-attr]
    text = refusal({**mine, "NVC_VGPU_ISOLATION": "mps"}, config)
    assert "NVC_VGPU_ISOLATION: mps: the operator isolates slices by the kernel" in text
    with pytest.raises(InputError, match="vgpu-isolation: kernel: CDI assigns the devices, without isolation"):
        slice_request(Container("/rootfs", {"NVC_VGPU_MEMORY": "4g"}), config)


def test_bounds_alone_make_no_slice() -> None:
    for config in (Config(vgpu_weight_max=4), Config(vgpu_policy="native"), Config(vgpu_cores_max=100)):
        assert request({}, config).vgpu is None
        assert request({"CUDA_DEVICE_SM_LIMIT": "0"}, config).vgpu is None
    assert request({}, Config(vgpu_policy="weight")).vgpu is not None


def test_cgpu_names_devices_of_its_own() -> None:
    """Those are given in slices, beside whole ones of NVIDIA's variable."""
    cgpu = {"ALIYUN_COM_GPU_MEM_CONTAINER": "3", "ALIYUN_COM_GPU_VISIBLE_DEVICES": "1"}
    both = asked({"NVIDIA_VISIBLE_DEVICES": "0", **cgpu})
    assert both is not None and both.devices == ("0", "1") and both.vgpu.devices == ("1",)  # type: ignore[union-attr]
    alone = asked(cgpu)
    assert alone is not None and alone.devices == ("1",)
    assert asked(cgpu, Config(vgpu_variables="ignore")) is None
    assert asked(cgpu, Config(accept_environment_unprivileged=False)) is None
    with pytest.raises(InputError, match="ALIYUN_COM_GPU_VISIBLE_DEVICES"):
        asked({**cgpu, "ALIYUN_COM_GPU_VISIBLE_DEVICES": "a b"})


def test_the_label_of_a_slice_is_that_of_the_containers_mounts() -> None:
    environment = {"NVIDIA_VISIBLE_DEVICES": "all", "NVC_VGPU_MEMORY": "1g"}
    found = request_from(Container("/r", environment, mount_label="u:r:t:s0"), Config())
    assert found is not None and found.vgpu is not None and found.vgpu.label == "u:r:t:s0"
