"""What CUDA contexts cost on this host: the file of `nvc-cli vgpu calibrate`, a line for each device kind.

driver 580.159.04  context 543162368  module 0  device NVIDIA H200
driver 580.159.04  context 201326592  module 0  memory 10176  device NVIDIA H100 80GB HBM3
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
import stat

from nvc.base.errors import NvcError
from nvc.base.files import closing, lines_of
from nvc.base.value import Value

PATH = "/var/lib/nvc/calibration"
#: Assumed where nothing was measured: more than a context took on any GPU that was looked at.
ASSUMED = 576 << 20
LIMIT = 1 << 20  # bytes of the file
READ = "read what contexts take"
AGAIN = "`nvc-cli vgpu calibrate` measures it again"


class CalibrationError(NvcError, code="NVC-2104", stage="vgpu", doctor="vgpu.calibration"):
    """Measurements cannot be made, kept or read."""


class Measurement(Value):
    """What one process takes on one kind of device: in bytes."""

    driver: str  # with the suffix of a simulated one
    device: str  # name of the GPU
    memory: int  # MiB of the MIG device, 0 for a whole GPU
    context: int
    module: int

    def line(self) -> str:
        """One line of the file, with its end."""
        part = f"  memory {self.memory}" if self.memory else ""
        return (
            f"driver {self.driver}  context {self.context}  module {self.module}{part}"
            f"  device {_printable(self.device)}\n"
        )


def load(path: str = PATH) -> tuple[Measurement, ...]:
    """Read the measurements; () without a file. Raises CalibrationError for a file that cannot be read."""
    try:
        with closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            status = os.fstat(fd)
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_uid not in (0, os.geteuid())
                or status.st_mode & 0o022
            ):
                raise CalibrationError(READ, path, "not a regular file of root that others cannot write", AGAIN)
            text = os.pread(fd, LIMIT, 0).decode("utf-8", "replace")
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise CalibrationError.of(READ, path, error, AGAIN) from None
    found = []
    for number, line in enumerate(lines_of(text), 1):
        one = parse_line(line)
        if one is None:
            raise CalibrationError(READ, path, f"line {number} is not valid", AGAIN)
        found.append(one)
    return tuple(found)


def parse_line(line: str) -> Measurement | None:
    """The measurement in one line of the file, or None if the line is malformed."""
    head, found, device = line.partition("  device ")
    words = head.split()
    fields = dict(zip(words[::2], words[1::2]))
    driver, context = fields.get("driver", ""), fields.get("context", "")
    memory, module = fields.get("memory", "0"), fields.get("module", "0")
    numbers = context, memory, module
    if not (
        found and driver and device and all(n.isascii() and n.isdigit() and len(n) < 16 for n in numbers)
    ):
        return None
    return Measurement(driver, device, int(memory), int(context), int(module))


def find(known: tuple[Measurement, ...], driver: str, device: str, memory: int) -> Measurement | None:
    """The measurement for a device with this name; `memory` is a MIG device's, in MiB, else 0."""
    for found in known:
        if (found.driver, found.device, found.memory) == (driver, _printable(device), memory):
            return found
    return None


def store(measured: tuple[Measurement, ...], path: str = PATH) -> None:
    """Add measurements to the file. Those of other drivers and devices are kept if the file can be read.

    Raises CalibrationError.
    """
    fresh = {(one.driver, _printable(one.device), one.memory) for one in measured}
    try:
        known = load(path)
    except CalibrationError:
        known = ()
    kept = [one for one in known if (one.driver, one.device, one.memory) not in fresh]
    text = "".join(one.line() for one in (*kept, *measured))
    from os import makedirs

    from nvc.base.files import replace_file

    try:
        makedirs(path.rpartition("/")[0], 0o755, exist_ok=True)
        replace_file(path, text.encode(), 0o644)
    except OSError as error:
        raise CalibrationError.of("keep measurements", path, error, "run as root") from None


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).strip()
