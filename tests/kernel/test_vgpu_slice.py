"""A container with a slice: what lies where, whose it is, and what the container cannot do about it."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any

import pytest
from support import GIB, run
from support.configure import BASIC, Configure, as_hook
from support.plans import apply, identity, mount_at, mounts, snapshot
from support.rootfs import LIBS
from support.vgpu import build_pass_through, entry_of, install_shim, limits_of

from nvc.base.errors import MountError
from nvc.model.slices import layout
from nvc.plan.ops import BindHostFile, Ledger, Plan
from nvc.slices.store.limits import edit, read_quota

VERSION = "580.159.04"
SLICE = (*BASIC, "--vgpu-memory=10GiB")
pytestmark = pytest.mark.usefixtures("shim")


@pytest.mark.parametrize(("runtime", "readonly"), [("runc", True), ("crun", False)])
def test_everything_is_in_its_place(
    runc_bundle: Any, debian: str, configure: Configure, shim: str, runtime: str, readonly: bool
) -> None:
    bundle = runc_bundle(debian)
    bundle.config["root"]["readonly"] = readonly
    as_hook(bundle, configure, SLICE)
    with bundle.created(runtime) as container:
        container.start()
        pid = container.pid
        root = f"/proc/{pid}/root{LIBS}"
        assert os.path.samefile(f"{root}/libcuda.so.1", f"{shim}/libcuda.so")
        assert os.path.samefile(f"{root}/libnvidia-ml.so.{VERSION}", f"{shim}/libnvidia-ml.so")
        driver = configure.command[1].partition("=")[2]
        assert os.path.samefile(f"{root}/nvc/real-libcuda.so.1", f"{driver}{LIBS}/libcuda.so.{VERSION}")
        assert os.path.samefile(
            f"{root}/nvc/real-libnvidia-ml.so.1", f"{driver}{LIBS}/libnvidia-ml.so.{VERSION}"
        )
        assert os.path.samefile(f"{root}/nvc/quota", entry_of(pid).quota)
        assert "ro,nosuid,nodev,noexec" in mount_at(pid, "/nvc/quota")
        ledger = mount_at(pid, "/nvc/ledger")
        assert "rw,nosuid,nodev,noexec" in ledger and "nr_inodes=2" in ledger
        assert f"size={-(-layout.LEDGER_SIZE // 4096) * 4}k" in ledger
        with open(f"{root}/nvc/ledger/ledger", "rb") as file:
            data = file.read()
        assert len(data) == layout.LEDGER_SIZE
        assert layout.LEDGER_HEADER.unpack_from(data)[:4] == (
            layout.LEDGER_MAGIC, layout.VERSION, layout.LEDGER_SIZE, layout.SLOTS,
        )  # fmt: skip
        assert limits_of(pid) == [10 * GIB, 10 * GIB]
        assert container.exec("nvidia-smi -L | wc -l").stdout.strip() == "2"
        nodes = container.exec("ls /dev | grep nvidia").stdout.split()
        assert nodes == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]


def test_nvc_spin_runs_in_a_container(
    stage: str, runc_bundle: Any, debian: str, configure: Configure
) -> None:
    """With nothing of the image but its C library."""
    shutil.copy(os.path.join(stage, "bin/nvc-spin"), os.path.join(debian, "usr/bin"))
    bundle = runc_bundle(debian)
    as_hook(bundle, configure, SLICE)
    with bundle.created("runc") as container:
        container.start()
        shown = container.exec("nvc-spin --memory 1GiB --seconds 0.2").stdout
        assert "1.00 of 10.00 GiB taken" in shown and " steps in " in shown
        refused = container.exec("nvc-spin --memory 10GiB 2>&1; echo $?").stdout
        assert "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory" in refused and refused.endswith("\n1\n")


def test_what_cannot_be_counted_is_left_out_and_said_so(
    runc_bundle: Any, debian: str, configure: Configure
) -> None:
    words = (*SLICE, "--graphics", "--video", "--compat32")
    with runc_bundle(debian).created("runc") as container:
        container.start()
        shown = configure(container.pid, debian, (*words, "--dry-run")).stdout
        left_out = re.search(r"left out.*\n(?: .*\n)*", shown)  # with the lines that go on
        assert left_out and "libnvidia-opencl.so" in left_out[0]
        configure(container.pid, debian, words)
        names = container.exec(f"find {LIBS} /usr/lib/i386-linux-gnu 2>/dev/null; true").stdout
        for stem in (
            "libnvidia-opencl",
            "libnvcuvid",
            "libnvidia-encode",
            "libGLX_nvidia",
            "libnvoptix",
            "i386",
        ):
            assert stem not in names
        configure(container.pid, debian, (*words, "--vgpu-uncounted"))
        names = container.exec(f"find {LIBS} -name 'libnv*'").stdout
        assert "libnvidia-opencl" in names and "libnvcuvid" in names


def test_two_slices_of_one_gpu_and_one_rootfs(runc_bundle: Any, debian: str, configure: Configure) -> None:
    """The rootfs does not tell containers apart; each has its own quota and ledger."""
    with runc_bundle(debian).created("runc") as one, runc_bundle(debian).created("runc") as other:
        for container, size in ((one, "10GiB"), (other, "25%")):
            container.start()
            configure(container.pid, debian, ("--device=0", *BASIC[1:], f"--vgpu-memory={size}"))
        assert limits_of(one.pid) == [10 * GIB]
        assert limits_of(other.pid) == [81559 * (1 << 20) // 4 // (1 << 20) * (1 << 20)]
        paths = [f"/proc/{c.pid}/root{LIBS}/nvc/ledger/ledger" for c in (one, other)]
        assert not os.path.samefile(*paths)


def test_again_changes_nothing_and_later_changes_the_same_file(
    runc_bundle: Any, debian: str, configure: Configure
) -> None:
    with runc_bundle(debian).created("runc") as container:
        container.start()
        configure(container.pid, debian, SLICE)
        path = f"/proc/{container.pid}/root{LIBS}/nvc/ledger/ledger"
        with open(path, "r+b") as ledger:  # somebody's account
            ledger.seek(layout.LEDGER_HEADER.size)
            ledger.write(b"\7")
        before = snapshot(debian), mounts(container.pid), os.stat(entry_of(container.pid).quota).st_ino
        configure(container.pid, debian, SLICE)
        after = snapshot(debian), mounts(container.pid), os.stat(entry_of(container.pid).quota).st_ino
        assert after == before
        configure(container.pid, debian, (*BASIC, "--vgpu-memory=3g,4g"))
        assert limits_of(container.pid) == [3 * GIB, 4 * GIB]
        with open(path, "rb") as ledger:
            assert ledger.read()[layout.LEDGER_HEADER.size] == 7


def test_again_takes_back_nothing_that_was_found_or_paused(
    runc_bundle: Any, debian: str, configure: Configure
) -> None:
    with runc_bundle(debian).created("runc") as container:
        container.start()
        configure(container.pid, debian, SLICE)
        entry = entry_of(container.pid)
        first, second = read_quota(entry)
        denied = first.replace(flags=layout.DENIED, correction=GIB)
        edit(entry, (denied, second.replace(flags=layout.PAUSED)), entry.devices)
        configure(container.pid, debian, (*BASIC, "--vgpu-memory=3g,4g"))
        found = [(one.memory_limit, one.flags, one.correction) for one in read_quota(entry)]
        assert found == [(3 * GIB, layout.DENIED, GIB), (4 * GIB, layout.PAUSED, 0)]


def test_a_device_that_comes_later_gets_the_next_position(
    runc_bundle: Any, debian: str, configure: Configure
) -> None:
    with runc_bundle(debian).created("runc") as container:
        container.start()
        configure(container.pid, debian, ("--device=1", *BASIC[1:], "--vgpu-memory=1g"))
        configure(container.pid, debian, ("--device=0", *BASIC[1:], "--vgpu-memory=2g"))
        assert limits_of(container.pid) == [1 * GIB, 2 * GIB]
        assert [device.index for device in entry_of(container.pid).devices] == ["1", "0"]


def test_a_tenant_gets_no_more_memory_from_its_ledger(
    runc_bundle: Any, debian: str, configure: Configure
) -> None:
    bundle = runc_bundle(debian)
    bundle.config["mounts"].append(
        {"destination": "/zero", "type": "bind", "source": "/dev/zero", "options": ["bind", "ro"]}
    )
    as_hook(bundle, configure, SLICE)
    place = f"{LIBS}/nvc/ledger"
    with bundle.created("runc") as container:
        container.start()
        for script in (
            f"cat /zero > {place}/ledger",
            f"busybox dd if=/zero of={place}/ledger bs=1M count=64 seek=1 conv=notrunc",
            f"busybox truncate -s 1G {place}/ledger; "
            f"busybox dd if=/zero of={place}/ledger bs=1M seek=1023 count=1 conv=notrunc",
            f"echo more > {place}/more",
            f"busybox mkdir {place}/directory",
            f"busybox cp /bin/busybox {place}/ledger && {place}/ledger true",
            f"rm {place}/ledger && cat /zero > {place}/ledger",
        ):
            assert container.exec(script, check=False).returncode != 0, script
            st = os.statvfs(f"/proc/{container.pid}/root{place}")
            assert (st.f_blocks - st.f_bfree) * st.f_frsize <= st.f_blocks * st.f_frsize <= 2 << 20
            assert st.f_files == 2
        assert container.exec(f"echo x > {LIBS}/nvc/quota", check=False).returncode != 0
        assert limits_of(container.pid) == [10 * GIB, 10 * GIB]


def test_other_copies_of_the_driver_are_covered(
    runc_bundle: Any, debian: str, configure: Configure, shim: str
) -> None:
    """In the directories where a loader looks; a link beside them leads to what the shim needs."""
    driver = configure.command[1].partition("=")[2]
    real = f"{driver}{LIBS}/libcuda.so.{VERSION}"
    for place in ("usr/local/nvidia/lib64", "opt/elsewhere", "usr/lib64"):
        os.makedirs(f"{debian}/{place}", exist_ok=True)
        run("cp", real, f"{debian}/{place}/libcuda.so.535.1")
        os.symlink("libcuda.so.535.1", f"{debian}/{place}/libcuda.so.1")
    run("cp", real, f"{debian}{LIBS}/libcuda.so.999.9")
    with open(f"{debian}/etc/ld.so.conf", "a", encoding="ascii") as conf:
        conf.write("/opt/elsewhere\n")
    run("/sbin/ldconfig", "-r", debian)
    with runc_bundle(debian).created("runc") as container:
        container.start()
        configure(container.pid, debian, SLICE)
        root = f"/proc/{container.pid}/root"
        for place in ("usr/local/nvidia/lib64", "opt/elsewhere", "usr/lib64"):
            assert os.path.samefile(f"{root}/{place}/libcuda.so.535.1", f"{shim}/libcuda.so")
            assert os.readlink(f"{root}/{place}/nvc") == f"{LIBS}/nvc"
        assert os.path.samefile(f"{root}{LIBS}/libcuda.so.999.9", f"{shim}/libcuda.so")
        before = mounts(container.pid)
        configure(container.pid, debian, SLICE)
        assert mounts(container.pid) == before


def test_a_failed_change_takes_back_the_limits(runc_bundle: Any, debian: str, configure: Configure) -> None:
    with runc_bundle(debian).created("runc") as container:
        container.start()
        configure(container.pid, debian, SLICE)
        os.makedirs(f"{debian}{LIBS}/libnvidia-opencl.so.{VERSION}")
        words = (*BASIC, "--vgpu-memory=1g", "--vgpu-uncounted")
        assert "libnvidia-opencl" in configure.refusal(container.pid, debian, words)
        assert limits_of(container.pid) == [10 * GIB, 10 * GIB]


def test_an_upgrade_leaves_running_containers_alone(runc_bundle: Any, debian: str, scratch: str) -> None:
    base, target = f"{scratch}/vgpu", f"{LIBS}/libcuda.so.{VERSION}"
    first = install_shim(build_pass_through(f"{scratch}/first", "first"), base)
    source = f"{first}/libcuda.so"
    with runc_bundle(debian).created("runc") as container:
        container.start()
        plan = Plan("/", "/", "/", "test", (), (BindHostFile(source, target, identity(source)),))
        apply(plan, container.pid, debian)
        for number in range(4):
            version = install_shim(build_pass_through(f"{scratch}/v{number}", str(number)), base)
            assert os.path.realpath(f"{base}/current") == version != first
        with open(f"/proc/{container.pid}/root{target}", "rb") as bound:
            content = bound.read()
        assert b"first" in content and content.startswith(b"\x7fELF")
    assert len([name for name in os.listdir(base) if name != "current"]) == 3 and not os.path.exists(first)


def test_the_label_of_a_ledger_is_a_mount_option(runc_bundle: Any, debian: str) -> None:
    """One that the kernel does not know, whether it has SELinux or not, is refused by it."""
    with runc_bundle(debian).created("runc") as container:
        container.start()
        before = mounts(container.pid)
        for label in ("no such label", "x" * 300):
            ledger = Ledger(f"{LIBS}/nvc/ledger", b"NVCLEDGR", 8192, label)
            with pytest.raises(MountError, match="ledger: invalid argument"):
                apply(Plan("/", "/", "/", "test", (), (ledger,)), container.pid, debian)
        assert mounts(container.pid) == before


#: What is refused, and what is said.
REFUSED = [
    (("--vgpu-memory=80g",), "has 81559 MiB"),
    (("--vgpu-memory=1g,2g,3g",), "3 sizes, but the number of devices is 2"),
    (("--vgpu-cores=50", "--vgpu-policy=native"), "--vgpu-policy: native: policy native ignores caps"),
    (("--vgpu-memory=1g", "--vgpu-policy=3"), "has no cap for the policy fixed"),
    (("--vgpu-uncounted",), "only with --vgpu-memory"),
]


def test_refused(runc_bundle: Any, debian: str, configure: Configure) -> None:
    with runc_bundle(debian).created("runc") as container:
        for words, cause in REFUSED:
            assert cause in configure.refusal(container.pid, debian, (*BASIC, *words))
            assert entry_of(container.pid) is None, words
