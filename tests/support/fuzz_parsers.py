"""Every Python parser of bytes that nvc did not write itself: how it is called, and what it may raise."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from nvc.apply.cgroup import v1
from nvc.apply.cgroup.evaluate import allows
from nvc.apply.cgroup.extend import Unreadable, readable
from nvc.apply.cgroup.find import cgroup_mounts, memberships
from nvc.base.errors import DetectionError, InitializationError, InputError, NvcError, RequirementError
from nvc.base.fastjson import JsonError, parse
from nvc.base.files import closing
from nvc.discovery import inventory
from nvc.discovery.devices.mig import parse_minors
from nvc.discovery.devices.proc import char_majors, fields_of, is_version, parse_address
from nvc.discovery.driver.ldcache import parse_cache
from nvc.discovery.nvml.wire import parse_reply
from nvc.frontends.cdi import validate
from nvc.frontends.cdi.hooks.arguments import parse_arguments
from nvc.frontends.cdi.store import CdiError, parse_document, text_of
from nvc.frontends.engines import EngineError
from nvc.frontends.engines.files import jsontext, tomltext
from nvc.kernel import objects, rm, tracing
from nvc.kernel.bpf import BpfProgram
from nvc.model.slices import layout, ledger, quota, sizes
from nvc.model.slices.entry import RegistryError, read_entry
from nvc.model.slices.sizes import parse_size
from nvc.request.config import Config, ConfigError
from nvc.request.config.file import parse as parse_config
from nvc.request.environment import request_from
from nvc.request.ids import user_and_group
from nvc.request.oci import Container, Malformed, container_of, read_state
from nvc.request.requirements import _holds
from nvc.slices.make import calibration
from nvc.slices.policy import policies
from nvc_cli import arguments
from nvc_cli.parse import parse_line

RULES = ((195, 0), (195, 255), (510, 1))
_directory = tempfile.mkdtemp(prefix="nvc-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


class Parser(NamedTuple):
    """A parser, and what it may raise."""

    call: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...] = ()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _words(data: bytes) -> list[str]:
    """As argv and environments are: no NUL in a word."""
    return [_text(word) for word in data.replace(b"\0", b"").split(b"\n")]


def _file(data: bytes) -> int:
    fd = os.memfd_create("fuzz")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _rm_minors(data: bytes) -> dict[str, int]:
    path = os.path.join(_directory, "driver/gpus/0")
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/information", "wb") as file:
        file.write(data)
    return rm.read_minors(os.path.join(_directory, "driver"))


def _tracer_news(data: bytes) -> None:
    """The record of the ring, and the same bytes as an entry of the table."""
    news = objects.parse_news(data)
    made = objects.parse_object(data[8:16], data[16:])
    assert news.object is None or news.object == made
    objects.living((made,), {made.pid: made.serial})


def _state(data: bytes) -> None:
    with closing(_file(data)) as fd:
        read_state(fd)


def _environment(data: bytes) -> None:
    pairs = [word.partition("=") for word in _words(data)]
    privileged = len(data) % 2 == 0
    request_from(Container("/r", {name: value for name, _, value in pairs}, privileged), Config())


def _proc(data: bytes) -> None:
    fields = fields_of(data)
    char_majors(data)
    for name, value in fields.items():
        parse_address(value)
        is_version(name)


def _mounts(data: bytes) -> None:
    cgroup_mounts(data)
    memberships(data)


def _devices(data: bytes) -> None:
    entries = v1.parse(data)
    for rule in RULES:
        v1.lacking(entries, rule)


def _options(data: bytes) -> None:
    line = parse_line(_words(data))
    arguments.driver_options(line.globals.values)
    if line.command == "configure":
        arguments.request(line.words.values)
        arguments.pid(line.words.values)


def _cdi(data: bytes) -> None:
    document = parse_document(data, "/etc/cdi/fuzz.json")
    if not validate.problems(document):
        for form in ("json", "yaml"):
            again = parse_document(text_of(document, form).encode(), f"/etc/cdi/fuzz.{form}")
            assert again == document, f"{form} changes the document"


def _ledger(data: bytes) -> None:
    """The beginning of a ledger, whose size is fixed."""
    ledger.parse(data.ljust(layout.LEDGER_SIZE, b"\0")[: layout.LEDGER_SIZE], 4)


def _named(name: str, data: bytes) -> str:
    path = os.path.join(_directory, name)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(data)
    return path


def _about(data: bytes) -> None:
    read_entry(os.path.dirname(_named("about", data)))


def _inventory(data: bytes) -> None:
    """As it is, and half of the time below a header that fits, as a hash may by accident."""
    if len(data) % 2 and len(data) > inventory._HEADER.size:
        data = inventory._header(data[inventory._HEADER.size :]) + data[inventory._HEADER.size :]
    inventory.load(os.path.basename(_named("inventory-1", data)), _directory)


def _engine_json(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    value = jsontext.load(text, "/etc/docker/daemon.json")
    if isinstance(value, dict):
        changed = jsontext.assign(text, "/etc/docker/daemon.json", ("runtimes", "nvc"), {"path": "/x"})
        again = jsontext.load(changed, "/etc/docker/daemon.json")
        assert again["runtimes"].pop("nvc") == {"path": "/x"}


def _minors(data: bytes) -> None:
    assert all(0 <= minor < 1 << 20 for minor in parse_minors(data).values())


def _quota(data: bytes) -> None:
    assert len(quota.unpack(data)[1]) <= layout.DEVICES


def _size(data: bytes) -> None:
    size = parse_size("size", _text(data))
    assert sizes.SMALLEST <= size.bytes <= sizes.LARGEST or 1 <= size.part <= size.whole == 100


def _policy(data: bytes) -> None:
    found = policies.parse(data.decode("utf-8", "replace"))
    assert policies.parse(found.text()) == found


def _engine_toml(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    tomltext.load(text, "/etc/containerd/config.toml")


PARSERS: dict[str, Parser] = {
    "about": Parser(_about, (RegistryError,)),
    "calibration": Parser(lambda data: calibration.parse_line(data.decode("utf-8", "replace"))),
    "cdi": Parser(_cdi, (CdiError,)),
    "cdi-hook": Parser(lambda data: parse_arguments(_words(data)), (InputError,)),
    "cgroup": Parser(_mounts),
    "config": Parser(lambda data: parse_config(data, "/etc/nvc/config.toml"), (ConfigError,)),
    "device-program": Parser(lambda data: allows(readable(BpfProgram(1, 1, data)), RULES), (Unreadable,)),
    "devices-list": Parser(_devices),
    "engine-json": Parser(_engine_json, (EngineError,)),
    "engine-toml": Parser(_engine_toml, (EngineError,)),
    "environment": Parser(_environment, (NvcError,)),
    "inventory": Parser(_inventory),
    "json": Parser(lambda data: parse(data, 1 << 20), (JsonError,)),
    "ldcache": Parser(parse_cache, (DetectionError,)),
    "ledger": Parser(_ledger, (ledger.LedgerError,)),
    "mig-minors": Parser(_minors, (DetectionError,)),
    "nvml-reply": Parser(parse_reply, (DetectionError, InitializationError)),
    "oci-config": Parser(lambda data: container_of(parse(data, 1 << 20), "/b"), (JsonError, Malformed)),
    "oci-state": Parser(_state, (NvcError,)),
    "options": Parser(_options, (NvcError,)),
    "policy": Parser(_policy, (policies.PolicyError, InputError)),
    "proc": Parser(_proc),
    "quota": Parser(_quota, (quota.QuotaError,)),
    "requirement": Parser(
        lambda data: _holds(
            _text(data), {"cuda": "13.0", "driver": "580.1", "arch": "9.0", "brand": "tesla"}
        ),
        (RequirementError,),
    ),
    "rm-minors": Parser(_rm_minors),
    "size": Parser(_size, (NvcError,)),
    "tracer": Parser(tracing.parse, (ValueError,)),
    "tracer-news": Parser(_tracer_news, (ValueError,)),
    "user": Parser(lambda data: user_and_group(_text(data.replace(b"\0", b""))), (InputError,)),
}
