"""Variables of four systems, and what of them counts."""

from __future__ import annotations

import pytest
from support import GIB

from nvc.base.errors import InputError
from nvc.model.request import SliceRequest
from nvc.model.slices.policy import POLICIES
from nvc.model.slices.variables import slice_from

CGPU = {"ALIYUN_COM_GPU_MEM_CONTAINER": "3"}


def asked(**environment: str) -> SliceRequest:
    found = slice_from(environment)
    assert found is not None
    return found


def memory(**environment: str) -> list[int]:
    return [size.bytes for size in asked(**environment).memory]


def refusal(**environment: str) -> str:
    with pytest.raises(InputError) as raised:
        slice_from(environment)
    return str(raised.value)


def test_nothing_is_nothing() -> None:
    assert slice_from({}) is None
    assert slice_from({"NVC_VGPU_MEMORY": "", "CUDA_DEVICE_MEMORY_LIMIT": "", "PATH": "/bin"}) is None
    assert slice_from({"CUDA_DEVICE_SM_LIMIT": "0", "CUDA_DEVICE_SM_LIMIT_1": "100"}) is None
    assert slice_from({"ALIYUN_COM_GPU_SCHD_WEIGHT": "1", "NVC_VGPU_LOG": "1"}) is None


def test_each_system_is_understood() -> None:
    assert memory(NVC_VGPU_MEMORY="10GiB") == [10 * GIB]
    assert memory(CUDA_DEVICE_MEMORY_LIMIT="3000m") == [3000 << 20]
    assert memory(CUDA_DEVICE_MEMORY_LIMIT="3g") == [3 * GIB]
    assert memory(**CGPU) == [3 * GIB]
    assert memory(NVIDIA_GPU_MEMORY_LIMIT="4096") == [4 * GIB]
    assert memory(NVIDIA_GPU_MEMORY_LIMIT="4096", NVIDIA_GPU_MEMORY_REQUEST="0") == [4 * GIB]
    assert memory(NVIDIA_GPU_MEMORY_LIMIT="4096", NVIDIA_GPU_MEMORY_REQUEST="4096") == [4 * GIB]
    assert memory(NVIDIA_GPU_MEMORY_REQUEST="2048") == [2 * GIB]
    for request, reserved in (("1024", GIB), ("4096", 4 * GIB), ("0", None), ("", None)):
        found = asked(NVIDIA_GPU_MEMORY_LIMIT="4096", NVIDIA_GPU_MEMORY_REQUEST=request)
        assert (found.reserved and found.reserved.bytes) == reserved
    part = asked(**CGPU, ALIYUN_COM_GPU_MEM_DEV="15").memory[0]
    assert (part.part, part.whole) == (3, 15)


@pytest.mark.parametrize(
    "other",
    [
        {"NVC_VGPU_MEMORY": "2g"},
        {"NVC_VGPU_MEMORY": "50%"},
        {"NVC_VGPU_MEMORY_1": "2g"},
        {"NVC_VGPU_MEMORY": "1g", "NVC_VGPU_MEMORY_1": "2g"},
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "2048m"},
        CGPU,
        {**CGPU, "ALIYUN_COM_GPU_MEM_DEV": "15"},
    ],
)
def test_nvidias_variables_contradict_no_other(other: dict[str, str]) -> None:
    for name in ("NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_REQUEST"):
        text = refusal(**other, **{name: "1024"})
        said = list(other)[-1] if "MEM_DEV" not in list(other)[-1] else "ALIYUN_COM_GPU_MEM_CONTAINER"
        assert f"{name}: 1024: {said} says {other[said]}; set one of the two" in text
    assert slice_from({**other, "NVIDIA_GPU_MEMORY_LIMIT": "", "NVIDIA_GPU_MEMORY_REQUEST": ""}) is not None


def test_nvidias_variables_may_repeat_another_size() -> None:
    assert memory(NVC_VGPU_MEMORY="1GiB", NVIDIA_GPU_MEMORY_LIMIT="1024") == [GIB]
    found = asked(NVC_VGPU_MEMORY_1="1GiB", NVIDIA_GPU_MEMORY_LIMIT="1024")
    assert [size.bytes for size in found.memory] == [GIB] and [place for place, _ in found.memory_at] == [1]
    assert memory(**CGPU, NVIDIA_GPU_MEMORY_LIMIT="1024", CGPU_DISABLE="true") == [GIB]
    hami = asked(NVIDIA_GPU_MEMORY_LIMIT="1024", CUDA_DEVICE_SM_LIMIT="30")
    assert [size.bytes for size in hami.memory] == [GIB] and hami.cores[0].value == 30


def shares(**environment: str) -> tuple[list[int], dict[int, int], int | None, int | None]:
    found = asked(**environment)
    return (
        [share.value for share in found.cores],
        {place: share.value for place, share in found.cores_at},
        found.weight and found.weight.value,
        found.policy and found.policy.value,
    )


def test_shares_of_time_need_no_memory() -> None:
    assert shares(NVC_VGPU_CORES="50", NVC_VGPU_CORES_1="25") == ([50], {1: 25}, None, None)
    assert shares(NVC_VGPU_WEIGHT="4", NVC_VGPU_POLICY="soft") == ([], {}, 4, 4)
    assert shares(NVC_VGPU_CORES="100", NVC_VGPU_POLICY="5") == ([0], {}, None, 5)
    assert shares(CUDA_DEVICE_SM_LIMIT="30", CUDA_DEVICE_SM_LIMIT_2="0") == ([30], {2: 0}, None, None)
    assert shares(ALIYUN_COM_GPU_SCHD_WEIGHT="4") == ([], {}, 4, None)
    assert asked(NVC_VGPU_CORES="50").memory == ()


def test_hami_can_say_that_its_caps_do_not_count() -> None:
    hami = {"CUDA_DEVICE_SM_LIMIT": "30"}
    for word in ("disable", "DISABLE"):
        assert slice_from({**hami, "GPU_CORE_UTILIZATION_POLICY": word}) is None
        assert shares(NVC_VGPU_CORES="20", GPU_CORE_UTILIZATION_POLICY=word)[0] == [20]
    for word in ("force", "default", ""):
        assert shares(**hami, GPU_CORE_UTILIZATION_POLICY=word)[0] == [30]
    assert "GPU_CORE_UTILIZATION_POLICY: never" in refusal(**hami, GPU_CORE_UTILIZATION_POLICY="never")


@pytest.mark.parametrize(
    "name", ["NVC_VGPU_CORES", "NVC_VGPU_CORES_1", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_0"]
)
@pytest.mark.parametrize(
    "value", ["0", "-1", "101", "50k", "101%", "50%%", "%", "5e1", "050", " 50", "fifty"]
)
def test_bad_caps(name: str, value: str) -> None:
    if value == "0" and name.startswith("CUDA"):
        return  # HAMi's way to say that there is none
    assert f"{name}: {value}: want a whole number from 1 to 100" in refusal(**{name: value})


def test_the_least_and_the_most() -> None:
    for cores in (1, 99):
        assert shares(NVC_VGPU_CORES=str(cores))[0] == [cores]
        assert shares(NVC_VGPU_CORES=f"{cores}%")[0] == [cores]


@pytest.mark.parametrize("name", ["NVC_VGPU_WEIGHT", "ALIYUN_COM_GPU_SCHD_WEIGHT"])
@pytest.mark.parametrize("value", ["0", "-1", "65537", "2k", "x"])
def test_bad_weights(name: str, value: str) -> None:
    assert f"{name}: {value}: want a whole number from 1 to 65536" in refusal(**{name: value})


@pytest.mark.parametrize("value", [str(len(POLICIES)), "-1", "best", "Fair", "03"])
def test_bad_policies(value: str) -> None:
    assert f"NVC_VGPU_POLICY: {value}: no such policy; the policies are fair (0), fir" in refusal(
        NVC_VGPU_POLICY=value
    )


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({"NVC_VGPU_MEMORY": "0"}, "NVC_VGPU_MEMORY: 0: 0 is not allowed"),
        ({"NVC_VGPU_MEMORY_0": "10gb"}, "NVC_VGPU_MEMORY_0: 10gb"),
        ({"NVC_VGPU_MEMORY_64": "1g"}, "NVC_VGPU_MEMORY_64: 1g: no such variable"),
        ({"NVC_VGPU_MEMORY_00": "1g"}, "no such variable"),
        ({"NVC_VGPU_MEMROY": "1g"}, "NVC_VGPU_MEMROY: 1g: no such variable"),
        ({"NVC_VGPU_WEIGHT_0": "1"}, "no such variable"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "0m"}, "CUDA_DEVICE_MEMORY_LIMIT: 0m: 0 is not allowed"),
        ({"CUDA_DEVICE_MEMORY_LIMIT_x": "1g"}, "want CUDA_DEVICE_MEMORY_LIMIT_0 to"),
        ({"ALIYUN_COM_GPU_MEM_CONTAINER": "3g"}, "ALIYUN_COM_GPU_MEM_CONTAINER: 3g"),
        ({**CGPU, "ALIYUN_COM_GPU_MEM_DEV": "2"}, "want 1 to 2, which ALIYUN_COM_GPU_MEM_DEV says"),
        ({**CGPU, "ALIYUN_COM_GPU_MEM_DEV": "-1"}, "ALIYUN_COM_GPU_MEM_DEV: -1"),
        ({"CGPU_DISABLE": "maybe"}, "CGPU_DISABLE: maybe: want true or false"),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "0"}, "NVIDIA_GPU_MEMORY_LIMIT: 0: 0 is not allowed"),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "4g"}, "NVIDIA_GPU_MEMORY_LIMIT: 4g: not a whole number of MiB"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "-1"}, "NVIDIA_GPU_MEMORY_REQUEST: -1: not a whole number of MiB"),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "04096"}, "NVIDIA_GPU_MEMORY_LIMIT: 04096: begins with 0"),
        ({"NVIDIA_GPU_MEMORY_LIMIT": "4294967296"}, "is it a number of bytes?; write MiB: 4096"),
        ({"NVIDIA_GPU_MEMORY_REQUEST": "10485760"}, "NVIDIA_GPU_MEMORY_REQUEST: 10485760: 10485760 MiB is more"),
        (
            {"NVIDIA_GPU_MEMORY_REQUEST": "4097", "NVIDIA_GPU_MEMORY_LIMIT": "4096"},
            "NVIDIA_GPU_MEMORY_REQUEST: 4097: more than NVIDIA_GPU_MEMORY_LIMIT, which is 4096",
        ),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(environment: dict[str, str], cause: str) -> None:
    assert cause in refusal(**environment)


def test_cgpu_can_be_switched_off_and_nothing_else_by_that() -> None:
    assert slice_from({**CGPU, "CGPU_DISABLE": "true", "ALIYUN_COM_GPU_SCHD_WEIGHT": "9"}) is None
    assert memory(**CGPU, CGPU_DISABLE="false") == [3 * GIB]
    assert memory(NVC_VGPU_MEMORY="1g", CGPU_DISABLE="1") == [GIB]


def test_cgpu_devices() -> None:
    assert asked(**CGPU, ALIYUN_COM_GPU_VISIBLE_DEVICES="0, 2,").devices == ("0", "2")
    assert asked(**CGPU, ALIYUN_COM_GPU_VISIBLE_DEVICES="all").devices == ("all",)
    assert asked(**CGPU).devices == ()
