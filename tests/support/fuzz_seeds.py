"""Writes the seeds of the fuzzer: real outputs, on a simulated driver, made small.

python -m support.fuzz_seeds    (as root, in tests; the stage must have been built)
"""

from __future__ import annotations

import json
import os
import struct
import tempfile

from nvc.apply.cgroup.program import encode
from nvc.discovery import discover
from nvc.discovery.host import Host
from nvc.discovery.nvml.asking import start
from nvc.frontends.cdi.store import text_of
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions
from nvc.model.slices import ledger, quota
from nvc.testing.sim import SimSpec, create
from support import REPO, STAGE, run
from support.bundle import default_config
from support.device_cgroup import DOCKER, SHAPES
from support.fuzz import CORPUS, put

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
ENVIRONMENT = (
    "NVIDIA_VISIBLE_DEVICES=all\nNVIDIA_DRIVER_CAPABILITIES=compute,utility,video\n"
    "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535,driver<536\n"
    "CUDA_VERSION=12.4.1\nNVIDIA_DISABLE_REQUIRE=0",
    f"NVIDIA_VISIBLE_DEVICES={UUID},0:1,MIG-{UUID[4:]}\nNVIDIA_MIG_CONFIG_DEVICES=all\nNVIDIA_IMEX_CHANNELS=0,3",
    "NVIDIA_VISIBLE_DEVICES=0,1\nNVC_VGPU_MEMORY=8GiB\nNVC_VGPU_MEMORY_1=25%\nNVC_VGPU_CORES=30\nNVC_VGPU_WEIGHT=2\n"
    "CUDA_DEVICE_MEMORY_LIMIT_0=4096m\nCUDA_DEVICE_SM_LIMIT=40\nALIYUN_COM_GPU_MEM_CONTAINER=4",
    "NVIDIA_VISIBLE_DEVICES=void\nNVIDIA_VISIBLE_DEVICES=none",
)
OPTIONS = (
    "--root=/run/nvidia/driver\n--load-kmods\nconfigure\n--ldconfig=@/sbin/ldconfig\n--device=all\n--compute\n--utility\n"
    "--require=cuda>=12.4\n--pid=4242\n/var/lib/rootfs",
    "-k\n-d\n/dev/null\nconfigure\n-p\n1\n-d\n0,1:0\n--imex-channel=0\n--vgpu-memory\n8GiB,25%\n--mig-config=all\n/r",
    "--user=nobody:nogroup\n--timeout=2.5\nlist\n--device=0\n--libraries",
)
CGROUP = (
    "25 30 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro\n"
    "30 25 0:26 /docker/a\\040b /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
    "31 25 0:27 /../.. /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    "9:name=systemd:/\n5:devices,pids:/docker/0123:4\n0::/system.slice/docker-0123.scope\n",
)
ABOUT = (
    "pid 4242\nstart 123456\nrootfs /var/lib/a%20b\nlibraries /usr/lib64\ncreated 1700000000\n"
    f"device {UUID} 0 85899345920 NVIDIA%20H100\npolicy 0 1\n"
)
#: A program of two instructions, and a map.
TRACER = (
    b'{"license": "GPL", "maps": [{"entries": 4, "flags": 0, "key_size": 4, "name": "m", "type": 1,'
    b' "value_size": 8}],'
    b' "programs": [{"maps": [[0, 0]], "name": "f", "size": 16, "start": 0, "tracepoint": "sys_exit"}]}\n'
    + bytes.fromhex("1801000000000000 9500000000000000")
)
DAEMON_JSON = '{\n    "runtimes": {"runc": {"path": "runc", "runtimeArgs": []}},\n  "debug": false\n}\n'
CONTAINERD = (
    'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
    '  runtime_type = "io.containerd.runc.v2"\n'
)
CONFIG = (
    '[nvidia-container-cli]\nroot = "/d"\nload-kmods = false\nenvironment = ["A=b"]\nuser = "root:video"\n'
    '[nvc]\nlog = "/var/log/nvc.log"\ntimeout = 5\n'
)


class Writer:
    """Puts files into the corpus."""

    def __init__(self) -> None:
        self.total = 0

    def put(self, parser: str, *contents: bytes | str) -> None:
        """The seeds of one parser; what was found before stays."""
        directory = os.path.join(CORPUS, parser)
        os.makedirs(directory, exist_ok=True)
        for number, content in enumerate(contents):
            data = content.encode() if isinstance(content, str) else content
            self.total += len(data)
            put(parser, f"seed-{number}", data)


def read(path: str, size: int = 1 << 16) -> bytes:
    """The first bytes of a file."""
    with open(path, "rb") as file:
        return file.read(size)


def main() -> None:
    """Write them all."""
    writer = Writer()
    with tempfile.TemporaryDirectory(prefix="nvc-seeds-") as base:
        root = f"{base}/driver"
        create(root, SimSpec(gpus=1, mig=("3x1g.10gb",)))
        options = DriverOptions(root=root, inventory=False)
        kernel = LinuxKernel()
        facts = discover(kernel, options)
        host = Host.open(kernel, options)
        probe = start(host, options, os.uname().machine, [])
        writer.put("nvml-reply", probe.result())
        probe.close()
        writer.put("ldcache", read(f"{root}/etc/ld.so.cache"))
        writer.put("mig-minors", read(f"{root}/proc/driver/nvidia-caps/mig-minors", 2048))
        gpu = (
            f"{root}/proc/driver/nvidia/gpus/{os.listdir(f'{root}/proc/driver/nvidia/gpus')[0]}/information"
        )
        names = (
            f"{root}/proc/devices",
            gpu,
            f"{root}/proc/driver/nvidia/params",
            f"{root}/proc/driver/nvidia/version",
        )
        writer.put("proc", *(read(name, 2048) for name in names))
        cli = f"{STAGE}/bin/nvc-cli"
        made = json.loads(run(cli, f"--root={root}", "cdi", "generate", "--format", "json").stdout)
        edits = made["containerEdits"]
        made["containerEdits"] = {name: edits[name][:3] for name in edits}
        forms = json.dumps(made) + "\n", text_of(made, "yaml")
        writer.put("cdi", *(text.replace(root, "/d").replace(STAGE, "/usr") for text in forms))
        run(cli, f"--root={root}", "info")
        (name,) = [
            name
            for name in os.listdir("/run/nvc")
            if name == f"inventory-{os.stat(root).st_dev:x}-{os.stat(root).st_ino:x}"
        ]
        writer.put("inventory", read(f"/run/nvc/{name}"))
        os.unlink(f"/run/nvc/{name}")
        assert facts.gpus
    config = default_config("/rootfs")
    config["mounts"] = config["mounts"][:2]
    config["annotations"] = {"nvc.vgpu": "x"}
    texts = (
        json.dumps(config),
        json.dumps({**config, "process": {**config["process"], "env": ENVIRONMENT[1].split("\n")}}),
    )
    writer.put("oci-config", *texts)
    writer.put(
        "json",
        json.dumps(config, indent=1),
        '[1, -2.5e3, "\\ud83d\\ude00 \\n", null, true, {"a": {"b": []}}]',
    )
    writer.put(
        "oci-state", '{"ociVersion": "1.0.2", "id": "a", "status": "creating", "pid": 4242, "bundle": "/b"}'
    )
    writer.put("engine-json", DAEMON_JSON, "{}")
    writer.put("engine-toml", CONTAINERD)
    documented = read(os.path.join(REPO, "docs/configuration.md"), 1 << 20).decode()
    blocks = [block.partition("```")[0] for block in documented.split("```toml\n")[1:]]
    writer.put("config", *blocks[:3], CONFIG)
    writer.put("environment", *ENVIRONMENT)
    writer.put("options", *OPTIONS)
    writer.put(
        "cdi-hook",
        "create-symlinks\n--link\nlibcuda.so.1::/usr/lib/libcuda.so\nupdate-ldcache\n--folder\n/usr/lib",
        "chmod\n--mode=755\n--path=/dev/dri\n--container-spec=/s.json",
        "slice-memory\n--slice\n0:8GiB\n--driver-root=/",
    )
    writer.put("cgroup", *CGROUP)
    writer.put("devices-list", "a *:* rwm\n", "c 1:3 rwm\nc 195:* r\nc 195:255 rw\nb *:* m\n")
    writer.put("device-program", *(encode(shape(DOCKER[2:])) for shape in SHAPES.values()))
    devices = tuple(quota.QuotaDevice(UUID[:-1] + digit, 8 << 30, 600 << 20, 100 << 20) for digit in "01")
    writer.put("quota", quota.pack(devices[:1], 2), quota.pack(devices, 4))
    writer.put("ledger", ledger.header() + bytes(range(256)) * 8)
    writer.put("about", ABOUT)
    writer.put("calibration", "driver 580.159.04  context 629145600  module 104857600  device NVIDIA H100\n")
    writer.put("policy", "policy fair\nmax-instances 4\ntotal-weight 100\nquantum-us 2000\n")
    writer.put("requirement", "cuda>=12.4", "brand=tesla,driver>=535,driver<536", "arch>=8.0 cuda<13")
    writer.put("rm-minors", f"Model: \t\t NVIDIA H100\nGPU UUID: \t {UUID}\nDevice Minor: \t 0\n")
    writer.put("tracer", TRACER)
    record = struct.pack("<IIIIQIIIiiI", 1, 7, 0xC1D00001, 0x5C000003, 130, 7, 0x5C000002, 0xC86F, 5, -1, 1)
    writer.put("tracer-news", record, struct.pack("<IIII32x", 6, 7, 0, 0))
    writer.put("size", "8GiB", "50%", "4096m", "17179869184")
    writer.put("user", "0", "root:root", "1000:100", "nobody")
    print(f"{writer.total} bytes")


if __name__ == "__main__":
    main()
