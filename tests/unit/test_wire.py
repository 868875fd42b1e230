"""The probe's answer as hostile JSON: each field that lies is refused, and nothing but our errors is raised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nvc.base.errors import DetectionError, InitializationError
from nvc.discovery.nvml import wire
from nvc.discovery.nvml.wire import parse_reply

UUIDS = [f"GPU-0000000{n}-aaaa-bbbb-cccc-00000000000{n}" for n in range(8)]
MIG_UUIDS = [f"MIG-0000000{n}-aaaa-bbbb-cccc-00000000000{n}" for n in range(8)]


def mig_record(**changes: Any) -> list[Any]:
    return [*({"index": 0, "uuid": MIG_UUIDS[0], "gi": 7, "ci": 0, "memory": 9984} | changes).values()]


def gpu_record(*mig: list[Any], **changes: Any) -> list[Any]:
    fields = {
        "index": 0, "uuid": UUIDS[0], "minor": 0, "address": [0, 0x1B, 0], "name": "NVIDIA H100", "brand": 14,
        "capability": [9, 0], "mig_capable": True, "mig_enabled": bool(mig), "mig": [*mig], "memory": 81559,
        "fabric": [3, 0],
    }  # fmt: skip
    return [*(fields | changes).values()]


def told(*answer: object) -> bytes:
    return json.dumps(answer).encode()


def frame(*gpus: list[Any], **changes: Any) -> bytes:
    fields = {
        "driver": "580.159.04", "cuda": 13000, "library": "/usr/lib/libnvidia-ml.so.1", "gpus": gpus, "lost": [],
        "lost_mig": [],
    }  # fmt: skip
    return told(wire.OK, 0, "", "", [*(fields | changes).values()])


def refused(data: bytes, match: str) -> None:
    with pytest.raises(DetectionError, match=match):
        parse_reply(data)


def test_versions() -> None:
    reply = parse_reply(frame(cuda=12080))
    assert (reply.driver_version, reply.simulated, reply.cuda_version) == ("580.159.04", False, "12.8")
    for version in ("", "580", "580..1", "580.1-beta", "1." * 21, "580.1\n2", "../1.2", "5\xb2.1"):
        refused(frame(driver=version), "driver version")
    for cuda in (-1, 1 << 30):
        refused(frame(cuda=cuda), "malformed")


def test_failures_of_the_probe() -> None:
    text = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
    for fields, kind, message in (
        (
            (wire.LOAD, 0, "load library failed", text),
            InitializationError,
            "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: "
            "no such file or directory; ",
        ),
        (
            (wire.NVML, 9, "nvmlInit", "Driver Not Loaded"),
            InitializationError,
            "initialization error: nvml error: driver not loaded; load the kernel module",
        ),
        (
            (wire.NVML, 18, "nvmlInit", "Driver/library version mismatch"),
            InitializationError,
            "initialization error: nvml error: driver/library version mismatch; the driver was upgraded",
        ),
        (
            (wire.NVML, 999, "nvmlDeviceGetCount", "Unknown Error"),
            DetectionError,
            "detection error: nvml error: nvmlDeviceGetCount: unknown error; `nvidia-smi` shows",
        ),
        (
            (wire.CONFINE, 1, "chroot", ""),
            InitializationError,
            "initialization error: confine driver probe: chroot: operation not permitted; run as root",
        ),
        (
            (wire.TOO_MANY, 65, "", ""),
            DetectionError,
            "detection error: driver error: too many devices: 65, at most 64",
        ),
    ):
        with pytest.raises(kind) as caught:
            parse_reply(told(*fields, []))
        assert str(caught.value).startswith(message)
    refused(told(17, 0, "", "", []), "malformed")


def test_an_error_text_cannot_break_the_line() -> None:
    refused(told(wire.NVML, 9, "nvmlInit", "a\nfake: line", []), "malformed answer: text")
    refused(told(wire.NVML, 9, "x" * 300, "a", []), "malformed answer: text")


def test_counts_and_sizes() -> None:
    good = frame(gpu_record())
    for size in range(len(good)):
        refused(good[:size], "malformed")
    refused(good + b"x", "malformed")
    refused(frame(*([gpu_record()] * 65)), "malformed")
    parts = [mig_record(index=number, uuid=f"MIG-{number:08}{UUIDS[0][12:]}", gi=number) for number in range(17)]
    refused(frame(gpu_record(*parts)), "17 MIG devices")
    for other in (b"{}", b"[]", b"7", b'"OK"', told(0, 0, "", ""), told(0, 0, "", "", [])):
        refused(other, "malformed")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"index": 1}, "GPU index"),
        ({"uuid": "GPU-0"}, "GPU UUID"),
        ({"uuid": "MIG-00000000-aaaa-bbbb-cccc-000000000000"}, "GPU UUID"),
        ({"uuid": "GPU-00000000-aaaa-bbbb-cccc-00000000000\n"}, "GPU UUID"),
        ({"uuid": "GPU-0000000\xe9-aaaa-bbbb-cccc-000000000000"}, "GPU UUID"),
        ({"name": "N" * 300}, "text"),
        ({"name": "NVIDIA\x1b[31m"}, "text"),
        ({"name": "NVIDIA,\nH100"}, "text"),
        ({"name": "NVIDIA \ufffd"}, "text"),
        ({"minor": 1 << 20}, "malformed"),
        ({"address": [0, 256, 0]}, "malformed"),
        ({"address": [0, 0, 32]}, "malformed"),
        ({"capability": [-1, 0]}, "malformed"),
        ({"capability": [0, 100]}, "malformed"),
    ],
)
def test_a_gpu_that_lies(changes: dict[str, Any], match: str) -> None:
    refused(frame(gpu_record(**changes)), match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"uuid": "MIG-0"}, "MIG UUID"),
        ({"uuid": UUIDS[0]}, "MIG UUID"),
        ({"uuid": f"MIG-{UUIDS[0]}/7"}, "MIG UUID"),
        ({"uuid": f"MIG-{UUIDS[0]}/../0"}, "MIG UUID"),
        ({"gi": 1024}, "malformed"),
        ({"ci": 0xFFFFFFFF}, "malformed"),
        ({"index": 5000}, "malformed"),
    ],
)
def test_a_mig_device_that_lies(changes: dict[str, Any], match: str) -> None:
    refused(frame(gpu_record(mig_record(**changes))), match)


def test_the_old_form_of_a_mig_uuid() -> None:
    uuid = f"MIG-{UUIDS[0]}/7/0"
    (gpu,) = parse_reply(frame(gpu_record(mig_record(uuid=uuid)))).gpus
    assert gpu.mig[0].uuid == uuid


def test_nothing_is_listed_twice() -> None:
    other = {"index": 1, "minor": 1, "address": [0, 2, 0], "uuid": UUIDS[1]}
    assert len(parse_reply(frame(gpu_record(), gpu_record(**other))).gpus) == 2
    for same, match in (
        ({"minor": 0}, "one minor twice"),
        ({"address": [0, 0x1B, 0]}, "one PCI address twice"),
        ({"uuid": UUIDS[0]}, "one UUID twice"),
    ):
        refused(frame(gpu_record(), gpu_record(**{**other, **same})), match)
    second = {"index": 1, "gi": 8, "uuid": MIG_UUIDS[1]}
    for same, match in (
        ({"index": 0}, "one MIG index twice"),
        ({"gi": 7}, "one MIG instance twice"),
        ({"uuid": MIG_UUIDS[0]}, "one UUID twice"),
    ):
        refused(frame(gpu_record(mig_record(), mig_record(**{**second, **same}))), match)


def test_what_nvml_could_not_describe_is_left_out_with_a_warning() -> None:
    lost, lost_mig = [[0, "nvmlDeviceGetUUID", "GPU is lost"]], [[1, 0, "nvmlDeviceGetUUID", 999]]
    reply = parse_reply(frame(gpu_record(index=1), lost=lost, lost_mig=lost_mig))
    assert [gpu.index for gpu in reply.gpus] == [1]
    assert reply.gpus[0].mig == ()
    assert reply.warnings == (
        "GPU 0 is left out: nvmlDeviceGetUUID: gpu is lost",
        "MIG device 1:0 is left out: nvmlDeviceGetUUID: nvml error 999",
    )
