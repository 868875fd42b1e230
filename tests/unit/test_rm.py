"""What is told of the driver's resource manager without calling it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvc.base.errors import RmError
from nvc.kernel import rm

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"


def test_minors_are_read_and_what_is_no_description_is_left_out(tmp_path: Path) -> None:
    def card(name: str, text: str) -> None:
        (tmp_path / "gpus" / name).mkdir(parents=True)
        (tmp_path / "gpus" / name / "information").write_text(text)

    assert rm.read_minors(str(tmp_path)) == {}
    card("0000:04:00.0", f"Model: \t H100\nGPU UUID: \t {UUID}\nDevice Minor: \t 3\n")
    card("0000:05:00.0", f"GPU UUID: {UUID[:-1]}0\nDevice Minor: x\n")
    card("0000:06:00.0", "GPU UUID: GPU-1\nDevice Minor: 1\n")
    card("0000:07:00.0", "Device Minor: 1\n")
    assert rm.read_minors(str(tmp_path)) == {UUID: 3}


def test_what_is_not_the_driver_is_refused() -> None:
    with pytest.raises(RmError, match="open: /nowhere: no such file"):
        rm.Rm.open("/nowhere")
    with pytest.raises(RmError, match="make a client: /dev/null: inappropriate ioctl"):
        rm.Rm.open("/dev/null")
    with pytest.raises(RmError, match="open: /nowhere/nvidia0: no such file"):
        rm.Rm.open("/dev/null", ["/nowhere/nvidia0"])


def test_a_descriptor_of_another_file_is_not_borrowed() -> None:
    with open("/dev/null") as null, open("/dev/zero") as zero, open("/proc/self/status") as file:
        mine = rm.borrow(os.getpid(), null.fileno(), "/dev/null")
        assert os.fstat(mine).st_rdev == os.fstat(null.fileno()).st_rdev
        os.close(mine)
        for other in (zero, file):
            before = os.listdir("/proc/self/fd")
            with pytest.raises(RmError, match="it is not of /dev/null"):
                rm.borrow(os.getpid(), other.fileno(), "/dev/null")
            assert os.listdir("/proc/self/fd") == before
    with pytest.raises(RmError, match=r"take a descriptor: /proc/\d+/fd/9999: bad file descriptor"):
        rm.borrow(os.getpid(), 9999, "/dev/null")
    with pytest.raises(RmError, match="take a descriptor: /proc/4194305/fd/1"):
        rm.borrow(4194305, 1, "/dev/null")


def test_errors_of_the_kernel_are_raised_and_statuses_returned() -> None:
    with open("/dev/null") as null, pytest.raises(RmError, match="set a timeslice: group 0x2: inappropriate"):
        rm.set_timeslice(null.fileno(), 1, 2, 3000)
    with open("/dev/null") as null, pytest.raises(RmError, match="read a timeslice: group 0x2: inappropriate"):
        rm.get_timeslice(null.fileno(), 1, 2)
