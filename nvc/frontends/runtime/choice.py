"""What a container asks for, and in which of two ways it is to be given: by the hook or by CDI's edits. Pure."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.value import Value
from nvc.frontends.cdi.names import device_problem, kind_problem
from nvc.model.facts import GATED
from nvc.model.request import Request
from nvc.request.config import Config
from nvc.request.environment import CAPABILITIES, VISIBLE, VOLUMES, is_legacy, request_from, volumes
from nvc.request.oci import Container, Mount

#: Under these kinds a name stands for what is there now, beside the configured default kind.
OWN_KINDS = ("runtime.nvidia.com/gpu", "nvidia.com/gpu")
#: A claim's devices are for the pods that the scheduler gave it to, and only the kubelet says which these are.
#: Also in nvc/kubernetes/names.py.
CLAIM_KINDS = ("k8s.gpu.nvc.dev/claim", "k8s.gpu.nvc.dev/slice")
#: NVIDIA's GPU operator makes this the default kind, and writes a specification: `all` is every node of the driver.
MANAGEMENT = "management.nvidia.com/gpu"
MAX_NAMES = 4096


class Choice(Value):
    """`request`: of this host's GPUs, None for none of them. `names`: CDI devices of specification files."""

    mode: str  # hook or cdi
    request: Request | None
    names: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()  # of devices beside GPUs


def choose(container: Container, config: Config, notes: list[str]) -> Choice | None:
    """The choice for one container, None where it asks for nothing.

    In mode `auto`, qualified names (vendor/class=device) are given by CDI's edits and all others by the hook.
    Raises InputError.
    """
    mode = config.mode
    if mode == "csv":
        raise InputError("mode", "csv", "not supported: no list of files says what a container gets",
                         "set mode = \"auto\" in [nvidia-container-runtime]")  # fmt: skip
    names, trusted = _qualified(container, config)
    if names and not (trusted or container.privileged or config.accept_environment_unprivileged):
        notes.append(f"{VISIBLE} is ignored: the container is not privileged")
        return None
    if not names:
        request = request_from(container, config, notes)
        if request is not None and request.devices == ("all",) and request.vgpu is None and _manages(config):
            return Choice("cdi", None, (f"{MANAGEMENT}=all",))
        way = "cdi" if mode in ("cdi", "jit-cdi") else "hook"
        return None if request is None else Choice(way, request, (), _kinds(container, config, notes))
    if mode in ("hook", "legacy"):
        raise InputError(VISIBLE, names[0][:80], f"a CDI device, and the mode is {mode}",
                         "set mode = \"auto\" in [nvidia-container-runtime]")  # fmt: skip
    kinds = OWN_KINDS if _manages(config) else (*OWN_KINDS, config.cdi_default_kind)
    own = [name.partition("=")[2] for name in names if name.partition("=")[0] in kinds]
    others = tuple(name for name in names if name.partition("=")[0] not in kinds)
    request = None
    if own:
        config = config.replace(accept_environment_unprivileged=True)
        request = request_from(_asking(container, own, config.supported_capabilities), config, notes)
    return Choice("cdi", request, others, _kinds(container, config, notes) if own else ())


def _kinds(container: Container, config: Config, notes: list[str]) -> tuple[str, ...]:
    """The kinds that a container asks for and the operator has switched on: an image can set any variable."""
    asked = [kind for kind in GATED if container.environment.get(f"NVIDIA_{kind.upper()}") == "enabled"]
    notes += [f"NVIDIA_{kind.upper()} is ignored: `kinds` in [nvc] does not name {kind}"
              for kind in asked if kind not in config.kinds]  # fmt: skip
    return tuple(kind for kind in asked if kind in config.kinds)


def _manages(config: Config) -> bool:
    """Whether `all` is what manages GPUs: MIG's rights with it, which edits for GPUs alone cannot give."""
    return config.mode == "cdi" and config.cdi_default_kind == MANAGEMENT


def _qualified(container: Container, config: Config) -> tuple[list[str], bool]:
    """The qualified names that a container asks for: all of its request, or none; and whether somebody other than
    its image must have written them. Raises InputError."""
    if config.mode in ("cdi", "jit-cdi"):  # who writes annotations may ask for devices
        prefixes = config.cdi_annotation_prefixes
        values = [value for key, value in container.annotations.items() if key.startswith(prefixes)]
        found = _checked([item for value in values for item in value.split(",")], "annotation")
        if found:
            return found, True
    tails = [tail for tail in volumes(container, config) if tail.startswith("cdi/")]
    if found := _checked([_from_path(tail) for tail in tails], "volume mount"):
        return found, True
    value = container.environment.get(VISIBLE, "")
    items = [item.strip() for item in value.split(",", MAX_NAMES + 1) if item.strip()]
    if not any("=" in item and "/" in item.partition("=")[0] for item in items):
        return [], False
    return _checked(items, VISIBLE), False


def _from_path(tail: str) -> str:
    """`cdi/vendor/class/device` or `cdi/vendor/class=device` as a qualified name."""
    tail = tail[len("cdi/") :]
    if "=" in tail or tail.count("/") < 2:
        return tail
    vendor, name, device = tail.split("/", 2)
    return f"{vendor}/{name}={device}"


def _checked(items: list[str], where: str) -> list[str]:
    """`items`, each once, which must all be qualified names. Raises InputError."""
    items = list(dict.fromkeys(item.strip() for item in items if item.strip()))
    if len(items) > MAX_NAMES:
        raise InputError(where, cause=f"{len(items)} items, at most {MAX_NAMES}")
    for item in items:
        kind, equals, device = item.partition("=")
        problem = kind_problem(kind) or device_problem(device) if equals else "is not vendor/class=device"
        if problem:
            raise InputError(where, item[:80], f"{problem}, beside CDI devices",
                             "name all as vendor/class=device, or none")  # fmt: skip
        if kind in CLAIM_KINDS:
            raise InputError(where, item[:80], "belongs to a claim: only the kubelet gives it",
                             "name the claim in the pod's resourceClaims")  # fmt: skip
    return items


def _asking(container: Container, devices: list[str], supported: tuple[str, ...]) -> Container:
    """The container as if it had asked for `devices` in the way in which it did, unqualified."""
    selectors = [_selector(device) for device in devices]
    kept = [mount for mount in container.mounts if not mount.destination.startswith(VOLUMES + "/cdi/")]
    mounts = kept
    if len(kept) < len(container.mounts):
        mounts = kept + [Mount("/dev/null", f"{VOLUMES}/{selector}") for selector in selectors]
    environment = {**container.environment, VISIBLE: ",".join(selectors)}
    if not environment.get(CAPABILITIES) and not is_legacy(environment):
        # As in the document of a CDI device, which no variable of the image changes.
        environment[CAPABILITIES] = ",".join(name for name in supported if name != "compat32")
    return container.replace(mounts=tuple(mounts), environment=environment)


def _selector(device: str) -> str:
    """A device's name as a selector: the names by type and index (gpu0, mig0:1) are their index."""
    for prefix in ("gpu", "mig"):
        tail = device.removeprefix(prefix)
        if tail != device and tail.replace(":", "", 1).isdecimal():
            return tail
    return device
