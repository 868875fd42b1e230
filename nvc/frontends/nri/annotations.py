"""What the annotations of a pod ask for one of its containers. Pure.

nri.nvc.dev/devices: "0"            for every container of the pod
nri.nvc.dev/memory.main: 10GiB      for the container `main`; one that has annotations of its own has only those
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nvc.base.errors import InputError, one_line
from nvc.model.request import Request, fields_by
from nvc.request.config import Config
from nvc.request.environment import CAPABILITIES, VISIBLE, is_need, request_from
from nvc.request.oci import Container

DOMAIN = "nri.nvc.dev/"
DEVICES = "devices"
#: Each annotation, and the variable of a container that says the same.
NAMES = {
    DEVICES: VISIBLE,
    **{row.name: row.variable for row in fields_by("annotation")},
    "capabilities": CAPABILITIES,
}
_VALUE_MAX = 4096
_SHOWN = 80


def asked(annotations: Mapping[str, str], container: str) -> dict[str, str] | None:
    """The annotations for `container` by name, without the domain; None where it has none.

    Raises InputError for a name that is not known and for a value that cannot be one.
    """
    common: dict[str, str] = {}
    own: dict[str, str] = {}
    for key in sorted(annotations):
        if not key.startswith(DOMAIN):
            continue
        name, dot, whose = key[len(DOMAIN) :].partition(".")
        if name not in NAMES or dot and not whose:
            known = ", ".join(NAMES)
            raise InputError("annotation", _short(key), "not known", f"those of {DOMAIN} are {known}")
        value = annotations[key].strip()
        if not value or len(value) > _VALUE_MAX or not value.isprintable():
            raise InputError(f"annotation {_short(key)}", _short(value), "want a value")
        if not dot:
            common[name] = value
        elif whose == container:
            own[name] = value
    return own or common or None


def request_of(wanted: Mapping[str, str], environment: Iterable[str], config: Config) -> Request:
    """What annotations ask for, within the operator's bounds. `environment` are the container's own variables.

    Raises InputError, ConfigError.
    """
    if DEVICES not in wanted:
        raise InputError(f"annotation {DOMAIN}{DEVICES}", cause="is missing", hint='write "0", or "all"')
    pairs = (entry.partition("=") for entry in environment)
    variables = {name: value for name, _, value in pairs if is_need(name)}
    variables |= {NAMES[name]: value for name, value in wanted.items()}
    config = config.replace(
        accept_environment_unprivileged=True, accept_volume_mounts=False, swarm_resource=(), vgpu_variables="obey"
    )
    request = request_from(Container("/", variables), config)
    if request is None:
        value = _short(wanted[DEVICES])
        raise InputError(f"annotation {DOMAIN}{DEVICES}", value, "names no device", 'write "0", or "all"')
    return request


def named(error: InputError) -> InputError:
    """The error with the annotation in place of the variable that it names."""
    names = {variable: name for name, variable in NAMES.items()}
    if error.step not in names:
        return error
    return InputError(f"annotation {DOMAIN}{names[error.step]}", error.path, error.cause, error.hint)


def _short(text: str) -> str:
    return one_line(text[:_SHOWN])
