"""The chart's values that become config.toml: their schema and their comments have the keys that nvc reads."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
import yaml
from support.prose import read

from nvc.request.config import vgpu
from nvc.request.config.file import parse
from nvc.request.config.keys import KEYS

CHART = "packaging/kubernetes/chart"
TABLES = ("nvc", "nvcd")
#: Keys that `sizes` and `metrics` write.
WRITTEN = {"vgpu", "metrics"}


def schema(table: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(read(f"{CHART}/values.schema.json"))["properties"]["config"]
    return found["properties"][table]  # type: ignore[index]


@pytest.mark.parametrize("table", TABLES)
def test_the_schema_has_the_keys_that_nvc_reads(table: str) -> None:
    found = schema(table)
    assert set(found["properties"]) == set(KEYS[table]) - WRITTEN  # type: ignore[call-overload]
    assert found["additionalProperties"] is False


def test_sizes_have_the_keys_of_their_tables() -> None:
    sizes = json.loads(read(f"{CHART}/values.schema.json"))["properties"]["sizes"]["items"]
    assert set(sizes["properties"]) == set(vgpu.KEYS)


@pytest.mark.parametrize(
    ("table", "key", "value", "wrong"),
    [
        ("nvc", "require-nvcd", True, "yes"),
        ("nvc", "timeout", 20, 0),
        ("nvc", "vgpu-memory", "10GiB", 10),
        ("nvc", "vgpu-cores", "25%", [25]),
        ("nvc", "vgpu-weight", 3, 3.5),
        ("nvc", "vgpu-period", "50ms", "50"),
        ("nvc", "vgpu-variables", "refuse", "deny"),
        ("nvc", "vgpu-isolation", "kernel", "mig"),
        ("nvc", "library-directories", ["/usr/lib"], ["lib"]),
        ("nvc", "kinds", ["gds", "mofed"], ["imex"]),
        ("nvcd", "on-excess", "stop", "kill"),
    ],
)
def test_schema_and_nvc_agree_on_values(table: str, key: str, value: object, wrong: object) -> None:
    text = f"[{table}]\n{key} = ".encode()
    jsonschema.validate({key: value}, schema(table))
    parse(text + json.dumps(value).encode(), "config.toml")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({key: wrong}, schema(table))
    with pytest.raises(Exception, match="invalid value"):
        parse(text + json.dumps(wrong).encode(), "config.toml")


def test_the_chart_s_own_values_are_right_and_a_wrong_key_is_not() -> None:
    """Helm validates values like this."""
    whole = json.loads(read(f"{CHART}/values.schema.json"))
    values = yaml.safe_load(read(f"{CHART}/values.yaml"))
    jsonschema.validate(values, whole)
    values["config"]["nvc"] = {"requireNvcd": True}
    with pytest.raises(jsonschema.ValidationError, match="requireNvcd"):
        jsonschema.validate(values, whole)


def test_the_keys_that_comments_name_exist() -> None:
    named = re.findall(r"^#.*config\.toml, such as ([\w-]+):", read(f"{CHART}/values.yaml"), re.MULTILINE)
    assert named and set(named) <= {key for table in TABLES for key in KEYS[table]}
