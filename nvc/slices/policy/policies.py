"""Device policies: an operator's settings for a device and all its slices.

They are a policy, and the numbers of SETTINGS.

    /run/nvc/vgpu-policy/<UUID of the GPU or MIG device>    lines of `name value`

nvcd reads these files too. Without a device policy, the oldest slice whose own is timed decides (entitlement.py). A
malformed file is an error, never "no policy".
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.errors import InputError, NvcError
from nvc.base.files import closing, lines_of
from nvc.base.rundir import needed_directory
from nvc.base.types import Callable
from nvc.base.value import Value
from nvc.model.slices.entry import open_own
from nvc.model.slices.hook import OFF
from nvc.model.slices.policy import POLICIES
from nvc.model.slices.sizes import parse_number
from nvc.model.slices.slice import SliceDevice
from nvc.model.slices.time_settings import IDLE_US, idle_seconds, parse_duration, parse_idle, parse_policy

NONE = -1
INSTANCES_MAX = 64
TOTAL_WEIGHT_MAX = 1 << 20
OVERSUBSCRIBE = (100, 1000)  # least and most, percent
QUANTUM_US = (1_000, 1_000_000)  # likewise
FLOOR_US = (100, 20_000)  # likewise
IDLE_S = (IDLE_US[0] // 1_000_000, IDLE_US[1] // 1_000_000)  # likewise, seconds
FILE_MAX = 4096
UUID_MAX = 80
_UUID = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-")


class PolicyError(
    NvcError, code="NVC-2106", stage="vgpu", doctor="vgpu",
    hint="`nvc-cli vgpu policy GPU --reset` removes it",
):  # fmt: skip
    """A device policy cannot be read or changed."""


class Setting(Value):
    """A number of a device policy; 0: it has none."""

    field: str  # of DevicePolicy
    name: str  # in the file
    bounds: tuple[int, int]  # the least and the most there
    option: str  # of `vgpu policy`
    metavar: str
    text: str  # the option's help
    parse: Callable[[str, str], int]  # takes the option, for messages, and its value. Raises InputError
    key: str  # in JSON
    admits: bool = False  # it bounds the slices that may be there: nvc/slices/store/admission.py
    by_nvcd: bool = False  # only nvcd keeps it, under each policy


SETTINGS = (
    Setting("max_instances", "max-instances", (1, INSTANCES_MAX), "--max-instances", "N",
            "Maximum number of slices; 0: unlimited.",
            lambda name, text: parse_number(name, text, 0, INSTANCES_MAX), "maxInstances", admits=True),
    Setting("total_weight", "total-weight", (1, TOTAL_WEIGHT_MAX), "--total-weight", "N",
            "Maximum sum of weights; 0: unlimited.",
            lambda name, text: parse_number(name, text, 0, TOTAL_WEIGHT_MAX), "totalWeight", admits=True),
    Setting("quantum_us", "quantum-us", QUANTUM_US, "--quantum", "TIME",
            "Timeslice of equal slices, 1ms to 1s; not under first. Default: 4ms, under soft 16ms.",
            lambda name, text: parse_duration(name, text, *QUANTUM_US), "quantumUs", by_nvcd=True),
    Setting("floor_us", "floor-us", FLOOR_US, "--floor", "TIME",
            "Under first: timeslice of slices that are not first, 100us to 20ms. Default: 100us.",
            lambda name, text: parse_duration(name, text, *FLOOR_US), "floorUs", by_nvcd=True),
    Setting("idle_s", "idle-suspend-s", IDLE_S, "--idle-suspend", "TIME",
            "Suspend slices that are idle for TIME, 1s to 168h, until they are used; off: none.",
            lambda name, text: idle_seconds(parse_idle(name, text)), "idleSuspendSeconds", by_nvcd=True),
    Setting("oversubscribe", "oversubscribe", OVERSUBSCRIBE, "--oversubscribe", "N%",
            "Limits of memory may add up to N% of the GPU's, 100% to 1000%; off: to any sum.",
            lambda name, text: 0 if text == OFF else parse_number(name, text, *OVERSUBSCRIBE, "%"),
            "oversubscribePercent", admits=True),
)  # fmt: skip
_BY_NAME = {row.name: row for row in SETTINGS}


class DevicePolicy(Value):
    """The operator's settings for one device."""

    policy: int = NONE  # place in policy.TABLE; NONE: each slice's own
    max_instances: int = 0  # 0: any number
    total_weight: int = 0  # 0: no bound
    quantum_us: int = 0  # microseconds; 0: none, as in InForce
    floor_us: int = 0  # microseconds: under `first`, the timeslice of who is not first; 0: as nvcd has it
    idle_s: int = 0  # seconds without work after which a slice is suspended until it is used; 0: none is
    oversubscribe: int = 0  # percent of its memory to which limits may add up; 0: no bound

    def effective(self, asked: int) -> int:
        """The number of the policy for a slice that asks for the policy with the number `asked`."""
        return asked if self.policy == NONE else self.policy

    @property
    def bounds(self) -> bool:
        """Whether it limits the number of slices, or the sum of their weights or limits of memory."""
        return any(row.admits and getattr(self, row.field) for row in SETTINGS)

    def text(self) -> str:
        """The content of the file."""
        lines = [f"policy {POLICIES[self.policy]}"] if self.policy != NONE else []
        numbers = ((row.name, getattr(self, row.field)) for row in SETTINGS)
        lines += [f"{name} {number}" for name, number in numbers if number]
        return "".join(f"{line}\n" for line in lines)


def directory() -> str:
    """The directory of the files, made if need be. Raises InitializationError if it cannot be made."""
    return needed_directory("read policies", "vgpu-policy")


def parse(text: str) -> DevicePolicy:
    """Parse the content of a file. Raises InputError."""
    found = DevicePolicy()
    for line in lines_of(text):
        name, _, value = line.partition(" ")
        if name == "policy":
            found = found.replace(policy=parse_policy(name, value).value)
        elif name in _BY_NAME:
            row = _BY_NAME[name]
            found = found.replace(**{row.field: parse_number(name, value, *row.bounds)})
        else:
            raise InputError(name[:UUID_MAX], "", "no such setting", f"known are policy, {', '.join(_BY_NAME)}")
    return found


def read(uuid: str) -> DevicePolicy:
    """Read the settings of a device; the defaults without a file. Raises PolicyError."""
    path = _path(uuid)
    try:
        fd = open_own(path)
    except FileNotFoundError:
        return DevicePolicy()
    except OSError as error:
        raise PolicyError.of("read policy", path, error) from None
    with closing(fd):
        data = os.read(fd, FILE_MAX)
    try:
        return parse(data.decode("ascii"))
    except (InputError, UnicodeDecodeError) as error:
        raise PolicyError("read policy", path, error) from None


def write(uuid: str, policy: DevicePolicy) -> None:
    """Write the settings of a device to a new file, or remove the file if they are the defaults.

    The caller holds the registry's lock. Raises PolicyError.
    """
    path = _path(uuid)
    from nvc.base.files import replace_file

    try:
        if policy.text():
            replace_file(path, policy.text().encode("ascii"), 0o600, sync=False)
        else:
            _unlink(path)
    except OSError as error:
        hint = f"the policy stays as it was; `df {directory()}` shows what room there is"
        raise PolicyError.of("write policy", path, error, hint) from None


def with_policies(devices: tuple[SliceDevice, ...]) -> tuple[SliceDevice, ...]:
    """The devices of a slice with their device policies applied. Raises PolicyError."""
    found = []
    for device in devices:
        own = DevicePolicy() if device.hidden else read(device.uuid)
        found.append(device.replace(policy=own.effective(device.asked_policy)))
    return tuple(found)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _path(uuid: str) -> str:
    if not uuid or len(uuid) > UUID_MAX or not _UUID.issuperset(uuid):
        raise PolicyError("read policy", uuid[:UUID_MAX], "not a UUID", "ask for another device")
    return f"{directory()}/{uuid}"
