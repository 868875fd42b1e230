"""`cdi refresh`: brings the specification in a directory up to date, as often and as concurrently as one likes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from nvc.base.errors import DetectionError, DeviceError, InitializationError
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.frontends.cdi.document import DocumentOptions
from nvc.frontends.cdi.generate import generate
from nvc.frontends.cdi.sliced import Slicing
from nvc.frontends.cdi.stamp import stamp_of_document
from nvc.frontends.cdi.store import CdiError, check_conflicts, open_directory, read_spec, text_of, write_in
from nvc.kernel import Kernel
from nvc.model.request import DriverOptions, Request

#: Seconds between attempts: doubled each time, up to the second number.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0
LOCK_TIMEOUT = 60.0


class Refreshed(Value):
    """What a refresh did."""

    path: str
    changed: bool
    devices: int
    warnings: tuple[str, ...]


def refresh(
    kernel: Kernel,
    options: DriverOptions,
    request: Request,
    how: DocumentOptions,
    directory: str,
    form: str,
    wait: float,
    slicing: Slicing | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Refreshed:
    """Write `directory`/<vendor>-<class>.<form>, unless it is right already; with `slicing`, one of slices.

    A driver that does not answer yet, or shows no device yet, is asked again for `wait` seconds: at boot this
    may come before the driver is ready. Raises NvcError; a file that was there is then still there.
    """

    def once(options: DriverOptions) -> Refreshed:
        name = f"{how.vendor}-{how.device_class}.{form}"
        with closing(open_directory(directory, create=True, private=True)) as fd:
            # The directory itself is the lock: from here one refresh sees what another has written.
            try:
                kernel.lock(fd, LOCK_TIMEOUT)
            except OSError as error:
                hint = "another refresh is at work"
                raise CdiError.of("lock specification directory", directory, error, hint) from None
            document, facts = generate(kernel, options, request, how, slicing)
            check_conflicts(fd, directory, name, document)
            path, data = f"{directory}/{name}", text_of(document, form).encode("utf-8", "surrogateescape")
            changed = write_in(fd, name, data, path)
            return Refreshed(path, changed, len(document["devices"]), facts.warnings)

    until = time.monotonic() + wait
    delay = FIRST_PAUSE
    while True:
        try:
            return once(options)
        except (InitializationError, DetectionError, DeviceError):
            left = until - time.monotonic()
            if left <= 0:
                raise
        pause(min(delay, left))
        delay = min(2 * delay, LONGEST_PAUSE)
        options = options.replace(inventory=False)  # what was found half ready is not to be believed


def remove(kernel: Kernel, how: DocumentOptions, directory: str, form: str) -> str:
    """Remove the specification of `how` from a directory if nvc wrote it; its path, or "" where there is none.

    Raises CdiError.
    """
    name = f"{how.vendor}-{how.device_class}.{form}"
    path = f"{directory}/{name}"
    if not os.path.isfile(path):
        return ""
    fd = open_directory(directory, create=False, private=True)
    try:
        kernel.lock(fd, LOCK_TIMEOUT)
        document = read_spec(path).document
        if not document or stamp_of_document(document) is None:
            return ""
        os.unlink(name, dir_fd=fd)
        return path
    except OSError as error:
        raise CdiError.of("remove specification", path, error) from None
    finally:
        os.close(fd)
