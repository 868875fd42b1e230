"""`nvc-cli doctor --bundle`: what is in the archive, and what is not, whatever was planted."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile

import pytest
from support import run
from support.doctorbox import Box
from support.engines import DRIVER, Host

#: Each in a place where a careless archive would pick it up.
SECRETS = {
    "environment": "env-5f2c81aa", "daemon.json": "proxy-77e1d0bc", "registry": "registry-c0ffee11",
    "comment": "comment-19ab44de", "spec": "spec-42d9e0f1", "kernel": "bearer-8aa0b3c4d5", "home": "alice-b7",
    "docker": "dG9wc2VjcmV0OnBhc3M=", "shadow": "shadow-64f0",
}  # fmt: skip
HOSTNAME = "planted-4417.example"
SERIAL = "1654321009876"
FILE = "/run/doctor.tar.gz"


@pytest.fixture(scope="module")
def planted(host: Host) -> Host:
    """A host with secrets in its files, and a container with one in its environment."""
    host.write(
        "/etc/docker/daemon.json",
        json.dumps({"proxies": {"http-proxy": f"http://user:{SECRETS['daemon.json']}@proxy.example:3128"}}),
    )
    logins = json.dumps({"auths": {"r.example": {"auth": SECRETS["docker"]}}})
    host.write(os.path.join("/root", ".docker/config.json"), logins)
    config = host.read("/etc/containerd/config.toml")
    host.write(
        "/etc/containerd/config.toml",
        f'{config}\n[plugins."io.containerd.grpc.v1.cri".registry.configs."r.example".auth]\n'
        f'  password = "{SECRETS["registry"]}"\n',
    )
    config = host.read("/etc/nvc/config.toml")
    host.write(
        "/etc/nvc/config.toml",
        f'# token: {SECRETS["comment"]}\n{config}environment = ["API_TOKEN={SECRETS["comment"]}"]\n'
        f'[nvc]\nlog = "/home/{SECRETS["home"]}/nvc.log"\n',
    )
    host.sh(f"nvc-cli --root {DRIVER} cdi generate --output /etc/cdi/nvidia.json")
    spec = json.loads(host.read("/etc/cdi/nvidia.json"))
    spec["containerEdits"]["env"] = [f"LICENSE_KEY={SECRETS['spec']}"]
    host.write("/etc/cdi/nvidia.json", json.dumps(spec))
    line = f"NVRM: GPU at PCI:0000:01:00: Board serial number {SERIAL} on {HOSTNAME} 10.1.2.3"
    host.write("/etc/hostname", f"{HOSTNAME}\n")
    host.write(
        "/run/kmsg", f"4,1,1,-;{line} authorization: Bearer {SECRETS['kernel']}\n6,2,2,-;audit password=x\n"
    )
    host.sh("mount --bind /run/kmsg /dev/kmsg")
    return host


def members(host: Host, archive: str = FILE) -> dict[str, str]:
    data = run(*host.namespace, "/bin/cat", archive, text=False).stdout
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as found:
        return {
            one.name: (found.extractfile(one) or io.BytesIO()).read().decode() for one in found.getmembers()
        }


def test_no_secret_is_in_it(planted: Host) -> None:
    box = Box(planted)
    variables = {"NVIDIA_VISIBLE_DEVICES": "all", "DB_PASSWORD": SECRETS["environment"]}
    with box.bundle(**variables).created("runc") as container:
        container.start()
        box.doctor(container.name, f"--bundle={FILE}", check=0)
    found = members(planted)
    everything = "\n".join(f"{name}\n{text}" for name, text in found.items())
    for place, secret in SECRETS.items():
        assert secret not in everything, place
    assert SERIAL not in everything and "10.1.2.3" not in everything and "audit" not in everything
    assert HOSTNAME not in everything and HOSTNAME.split(".")[0] not in everything
    uuids = json.loads(planted.sh(f"nvc-cli --root {DRIVER} info --format json").stdout)["gpus"]
    assert all(gpu["uuid"] not in everything for gpu in uuids)


def test_what_is_in_it(planted: Host) -> None:
    planted.sh(f"rm -f {FILE}; nvc-cli doctor --bundle {FILE} > /run/shown || true")
    found = members(planted)
    names = {name.removeprefix("nvc-doctor/") for name in found}
    assert names >= {
        "report.txt", "report.json", "info.json", "configuration.json", "engines.json", "versions.json",
        "driver-files.txt", "slices.json", "kernel-log.txt",
        "cdi/etc/cdi/nvidia.json",
    }  # fmt: skip
    assert len(json.loads(found["nvc-doctor/report.json"])["checks"]) > 40
    info = json.loads(found["nvc-doctor/info.json"])
    assert [gpu["uuid"][-1] for gpu in info["gpus"]] == ["1", "2"], "masked, and told apart"
    assert info["gpus"][0]["uuid"] in found["nvc-doctor/cdi/etc/cdi/nvidia.json"], (
        "the same wherever it is"
    )
    assert json.loads(found["nvc-doctor/cdi/etc/cdi/nvidia.json"])["containerEdits"]["env"] == [
        "LICENSE_KEY=<removed>"
    ]
    assert "Board serial number <removed> on <host> <address>" in found["nvc-doctor/kernel-log.txt"]
    assert json.loads(found["nvc-doctor/configuration.json"])["root"] == DRIVER
    assert f"{DRIVER}/dev/nvidia0 195:0" in found["nvc-doctor/driver-files.txt"]
    assert found["nvc-doctor/report.txt"] == planted.read("/run/shown")


def test_the_file(planted: Host) -> None:
    """Nobody else can read it, and nothing is overwritten, by way of a link neither."""
    planted.sh(f"rm -f {FILE}; nvc-cli doctor --unmasked --bundle {FILE} > /run/shown || true")
    mode = planted.sh(f"stat -c %a {FILE}").stdout
    assert int(mode, 8) == stat.S_IRUSR | stat.S_IWUSR
    everything = "".join(members(planted).values())
    assert SERIAL in everything and "GPU-0000" not in everything
    assert all(secret not in everything for place, secret in SECRETS.items() if place != "home")
    planted.sh("rm -f /run/link; ln -s /run/target /run/link")
    for path in (FILE, "/run/link", "/run/no/such/place", "/run"):
        done = run(*planted.namespace, "nvc-cli", "doctor", "driver.root", "--bundle", path, check=False)
        assert done.returncode == 1 and "archive error: write archive" in done.stderr or path == "/run", (
            done.stderr
        )
        assert "Traceback" not in done.stderr
    planted.sh("[ ! -e /run/target ]")


def test_without_a_driver_and_without_root(planted: Host) -> None:
    planted.sh("chmod 1777 /run; rm -f /run/one.tar.gz /run/two.tar.gz")
    nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all"
    for command in (
        "nvc-cli --root / doctor --bundle /run/one",
        f"{nobody} nvc-cli doctor --bundle /run/two",
    ):
        done = planted.sh(f"{command}.tar.gz", check=False)
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr
    assert '"error"' in members(planted, "/run/one.tar.gz")["nvc-doctor/info.json"]
    everything = "".join(members(planted, "/run/two.tar.gz").values())
    assert all(secret not in everything for secret in SECRETS.values())
