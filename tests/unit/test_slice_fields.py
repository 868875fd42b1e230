"""A row of SLICE_FIELDS is all that options, variables, annotations, sizes and claims need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.prose import read

from nvc.frontends.cdi.sliced import SliceSize, parsed, sizes_of, written
from nvc.frontends.nri.annotations import NAMES
from nvc.kubernetes.claims.claim import Given
from nvc.model.request import SLICE_FIELDS, Field, Part, Portion, SliceRequest, Timing, fields_by
from nvc.model.slices.layout import QUOTA_FIELDS
from nvc.model.slices.quota import QuotaDevice, pack, unpack
from nvc.model.slices.slice import SliceDevice
from nvc.request.config.file import parse
from nvc.slices.policy.entitlement import Demand
from nvc.slices.store.status import SliceDeviceStatus
from nvc_cli import arguments

UUID = "GPU-5c1e0000-0000-0000-0000-00000000000a"
#: A value of each kind.
SAMPLES = {
    "size": "1GiB", "cores": "25", "period": "50ms", "weight": "3", "policy": "weight", "isolation": "kernel",
    "hook": "http:8000/sleep?level=1", "idle": "10m", "mechanism": "swap",
}  # fmt: skip
SCHEMA = json.loads(read("packaging/kubernetes/chart/values.schema.json"))["properties"]


def said(wanted: SliceRequest | None, row: Field) -> str:
    """What a request has of a field, as text."""
    value = getattr(wanted, row.name)
    (one,) = value if row.each else (value,)
    return str(getattr(one, "text", one))


def ids(row: Field) -> str:
    return row.name


@pytest.mark.parametrize("row", SLICE_FIELDS, ids=ids)
def test_the_page(row: Field) -> None:
    lines = read("docs/cli.md").splitlines()
    (line,) = [one for one in lines if one.startswith(f"| `--{row.option}") and f"]({row.page})" in one]
    assert row.text.replace(": {policies}", "") in line and ("claim" in line) == ("claim" in row.by)


def test_annotations() -> None:
    assert {NAMES[row.name] for row in fields_by("annotation")} == {row.variable for row in fields_by("annotation")}


@pytest.mark.parametrize("row", [row for row in SLICE_FIELDS if row.kind != "flag"], ids=ids)
@pytest.mark.parametrize("prefix", ["vgpu-", ""])
def test_options(row: Field, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "_requires_daemon", lambda: False)
    option = row.option.replace("vgpu-", prefix, 1)
    values: dict[str, str | bool | list[str]] = {f"{prefix}memory".replace("-", "_"): "2GiB"}
    values[option.replace("-", "_")] = SAMPLES[row.kind]
    assert said(arguments.slice_request(values, prefix), row) == SAMPLES[row.kind]


@pytest.mark.parametrize("row", fields_by("size"), ids=ids)
def test_sizes(row: Field) -> None:
    values: dict[str, Any] = {"name": "a", "memory": "2GiB", "cores": 50 if row.kind == "period" else 0}
    values[row.key] = int(SAMPLES[row.kind]) if row.kind == "weight" else SAMPLES[row.kind]
    lines = (f"{key} = {json.dumps(value)}" for key, value in values.items())
    config = parse("\n".join(("[[nvc.vgpu]]", *lines)).encode(), "/c")
    ((_, _, given),) = config.vgpu_devices
    assert dict(given)[row.name] == SAMPLES[row.kind] and len(sizes_of(config)) == 1
    assert row.key in SCHEMA["sizes"]["items"]["properties"]


def test_every_form_of_a_slice_has_its_fields() -> None:
    for kind in (Part, SliceDevice, SliceSize, Given):
        assert issubclass(kind, Portion)
    for other in (QuotaDevice, Demand, SliceDeviceStatus, Portion):
        assert issubclass(other, Timing)
    assert {*QUOTA_FIELDS} == {*QuotaDevice._fields}


def test_each_field_comes_through_an_argument_and_a_quota() -> None:
    numbers: dict[str, Any] = {**dict.fromkeys(Timing._fields, 20_000), "cores": 5, "policy": 2}
    texts = {"suspend_hook": "signal:USR1", "resume_hook": "http:1/" + 73 * "a", "idle_suspend": "90s"}
    texts["suspend_by"] = "swap"
    part = Part(UUID, 1 << 30, **numbers, reserved=7, **texts)
    assert parsed(written(part)) == part
    device = QuotaDevice(UUID, 1 << 30, **part.only(Timing))
    assert unpack(pack((device,), 2)) == (2, (device,))
