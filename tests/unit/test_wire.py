"""The probe's answer as hostile bytes: each field that lies is refused, and nothing but our errors is raised."""

from __future__ import annotations

from typing import Any

import pytest

from nvc.base.errors import DetectionError, InitializationError
from nvc.discovery.nvml import wire
from nvc.discovery.nvml.wire import ProbeGpu, ProbeMig, parse_reply

UUIDS = [f"GPU-0000000{n}-aaaa-bbbb-cccc-00000000000{n}" for n in range(8)]
MIG_UUIDS = [f"MIG-0000000{n}-aaaa-bbbb-cccc-00000000000{n}" for n in range(8)]


def mig_record(**changes: Any) -> bytes:
    fields = {"index": 0, "status": 0, "gi": 7, "ci": 0, "memory": 9984, "uuid": MIG_UUIDS[0].encode()}
    fields.update(changes)
    return wire.MIG.pack(*fields.values())


def gpu_record(mig: tuple[bytes, ...] = (), **changes: Any) -> bytes:
    fields = {
        "index": 0, "status": 0, "flags": wire.HAS_MINOR | wire.MIG_CAPABLE, "minor": 0, "domain": 0, "bus": 0x1B,
        "device": 0, "brand": 14, "major": 9, "low": 0, "mig_count": len(mig), "memory": 81559,
        "fabric_state": 3, "fabric_status": 0,
        "uuid": UUIDS[0].encode(), "name": b"NVIDIA H100",
    }  # fmt: skip
    fields.update(changes)
    slots = b"".join(mig)
    return wire.GPU.pack(*fields.values()) + slots.ljust(wire.MIG_MAX * wire.MIG.size, b"\0")


def frame(*gpus: bytes, **changes: Any) -> bytes:
    fields = {
        "magic": wire.MAGIC, "version": wire.VERSION, "status": wire.OK, "code": 0, "count": len(gpus),
        "size": wire.GPU_SIZE, "cuda": 13000, "step": b"", "text": b"", "driver": b"580.159.04",
        "library": b"/usr/lib/libnvidia-ml.so.1",
    }  # fmt: skip
    fields.update(changes)
    return wire.FRAME.pack(*fields.values()) + b"".join(gpus)


def refused(data: bytes, match: str) -> None:
    with pytest.raises(DetectionError, match=match):
        parse_reply(data)


def test_a_sound_answer() -> None:
    mig = (mig_record(), mig_record(index=3, gi=9, uuid=MIG_UUIDS[1].encode()))
    reply = parse_reply(
        frame(
            gpu_record(mig, flags=7, minor=5),
            gpu_record(index=1, minor=1, bus=0x2B, uuid=UUIDS[1].encode(), flags=0, brand=99),
        )
    )
    assert (reply.driver_version, reply.simulated, reply.cuda_version) == ("580.159.04", False, "13.0")
    first, second = reply.gpus
    assert first == ProbeGpu(
        0, UUIDS[0], 5, (0, 0x1B, 0), "NVIDIA H100", "Nvidia", "9.0", True, True,
        (ProbeMig(0, MIG_UUIDS[0], 7, 0, 9984), ProbeMig(3, MIG_UUIDS[1], 9, 0, 9984)), 81559, (3, 0),
    )  # fmt: skip
    assert (second.minor, second.brand, second.mig_capable, second.mig) == (-1, "Unknown", False, ())
    assert reply.warnings == ()


def test_versions() -> None:
    reply = parse_reply(frame(cuda=12080))
    assert (reply.driver_version, reply.simulated, reply.cuda_version) == ("580.159.04", False, "12.8")
    for version in (
        b"",
        b"580",
        b"580..1",
        b"580.1-beta",
        b"580.159.04-sim",
        b"580.1\n2",
        b"../1.2",
        b"1." * 20 + b"1",
        b"5\xb2.1",
    ):
        refused(frame(driver=version), "driver version")
    for cuda in (-1, 1 << 30):
        refused(frame(cuda=cuda), "CUDA version")


def test_failures_of_the_probe() -> None:
    text = b"libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
    for fields, kind, message in (
        (
            {"status": wire.LOAD, "step": b"load library failed", "text": text},
            InitializationError,
            "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: "
            "no such file or directory; ",
        ),
        (
            {"status": wire.NVML, "step": b"nvmlInit", "text": b"Driver Not Loaded", "code": 9},
            InitializationError,
            "initialization error: nvml error: driver not loaded; load the kernel module",
        ),
        (
            {
                "status": wire.NVML,
                "step": b"nvmlInit",
                "text": b"Driver/library version mismatch",
                "code": 18,
            },
            InitializationError,
            "initialization error: nvml error: driver/library version mismatch; the driver was upgraded",
        ),
        (
            {"status": wire.NVML, "step": b"nvmlDeviceGetCount", "text": b"Unknown Error", "code": 999},
            DetectionError,
            "detection error: nvml error: nvmlDeviceGetCount: unknown error; `nvidia-smi` shows",
        ),
        (
            {"status": wire.CONFINE, "step": b"chroot", "code": 1},
            InitializationError,
            "initialization error: confine driver probe: chroot: operation not permitted; run as root",
        ),
        (
            {"status": wire.TOO_MANY, "code": 65},
            DetectionError,
            "detection error: driver error: too many devices: 65, at most 64",
        ),
    ):
        with pytest.raises(kind) as caught:
            parse_reply(frame(**fields))
        assert str(caught.value).startswith(message)
    refused(frame(status=17), "status")


def test_an_error_text_cannot_break_the_line() -> None:
    refused(frame(status=wire.NVML, step=b"nvmlInit", text=b"a\nfake: line"), "malformed answer: text")
    refused(frame(status=wire.NVML, step=b"x" * 96, text=b"a"), "malformed answer: step")


def test_counts_and_sizes() -> None:
    good = frame(gpu_record())
    for size in range(len(good)):
        refused(good[:size], "truncated")
    refused(good + b"\0", "truncated")
    refused(frame(gpu_record(), count=2), "truncated")
    refused(frame(gpu_record(), count=0), "truncated")
    refused(frame(count=65), "65 GPUs")
    refused(frame(count=0xFFFFFFFF), "4294967295 GPUs")
    refused(frame(size=wire.GPU_SIZE + 4), "header")
    refused(frame(magic=b"NVCPROBF"), "header")
    refused(frame(version=2), "header")
    refused(frame(gpu_record(mig_count=17)), "17 MIG devices")
    refused(b"", "truncated")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"index": 1}, "GPU index"),
        ({"uuid": b"GPU-0"}, "GPU UUID"),
        ({"uuid": b"MIG-00000000-aaaa-bbbb-cccc-000000000000"}, "GPU UUID"),
        ({"uuid": b"GPU-00000000-aaaa-bbbb-cccc-00000000000\n"}, "GPU UUID"),
        ({"uuid": b"G" * 96}, "GPU UUID"),  # no end within the field
        ({"uuid": b"GPU-0000000\xe9-aaaa-bbbb-cccc-000000000000"}, "GPU UUID"),
        ({"name": b"N" * 96}, "GPU name"),
        ({"name": b"NVIDIA\x1b[31m"}, "GPU name"),
        ({"name": b"NVIDIA,\nH100"}, "GPU name"),
        ({"minor": 1 << 20}, "GPU minor"),
        ({"bus": 256}, "PCI address"),
        ({"device": 32}, "PCI address"),
        ({"major": -1}, "compute capability"),
        ({"low": 100}, "compute capability"),
    ],
)
def test_a_gpu_that_lies(changes: dict[str, Any], match: str) -> None:
    refused(frame(gpu_record(**changes)), match)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"uuid": b"MIG-0"}, "MIG UUID"),
        ({"uuid": UUIDS[0].encode()}, "MIG UUID"),
        ({"uuid": b"MIG-" + UUIDS[0].encode() + b"/7"}, "MIG UUID"),
        ({"uuid": b"MIG-" + UUIDS[0].encode() + b"/../0"}, "MIG UUID"),
        ({"uuid": b"M" * 96}, "MIG UUID"),
        ({"gi": 1024}, "MIG instance"),
        ({"ci": 0xFFFFFFFF}, "MIG instance"),
        ({"index": 5000}, "MIG instance"),
    ],
)
def test_a_mig_device_that_lies(changes: dict[str, Any], match: str) -> None:
    refused(frame(gpu_record((mig_record(**changes),))), match)


def test_the_old_form_of_a_mig_uuid() -> None:
    uuid = f"MIG-{UUIDS[0]}/7/0"
    (gpu,) = parse_reply(frame(gpu_record((mig_record(uuid=uuid.encode()),)))).gpus
    assert gpu.mig[0].uuid == uuid


def test_nothing_is_listed_twice() -> None:
    other = {"index": 1, "minor": 1, "bus": 2, "uuid": UUIDS[1].encode()}
    assert len(parse_reply(frame(gpu_record(), gpu_record(**other))).gpus) == 2
    for same, match in (
        ({"minor": 0}, "one minor twice"),
        ({"bus": 0x1B}, "one PCI address twice"),
        ({"uuid": UUIDS[0].encode()}, "one UUID twice"),
    ):
        refused(frame(gpu_record(), gpu_record(**{**other, **same})), match)
    second = {"index": 1, "gi": 8, "uuid": MIG_UUIDS[1].encode()}
    for same, match in (
        ({"index": 0}, "one MIG index twice"),
        ({"gi": 7}, "one MIG instance twice"),
        ({"uuid": MIG_UUIDS[0].encode()}, "one UUID twice"),
    ):
        refused(frame(gpu_record((mig_record(), mig_record(**{**second, **same})))), match)


def test_what_nvml_could_not_describe_is_left_out_with_a_warning() -> None:
    lost = gpu_record(status=15, uuid=b"nvmlDeviceGetUUID", name=b"GPU is lost")
    broken = mig_record(status=999, uuid=b"nvmlDeviceGetUUID")
    reply = parse_reply(frame(lost, gpu_record((broken,), index=1)))
    assert [gpu.index for gpu in reply.gpus] == [1]
    assert reply.gpus[0].mig == ()
    assert reply.warnings == (
        "GPU 0 is left out: nvmlDeviceGetUUID: gpu is lost",
        "MIG device 1:0 is left out: nvmlDeviceGetUUID: nvml error 999",
    )
