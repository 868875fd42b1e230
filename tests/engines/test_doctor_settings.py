"""`nvc-cli doctor`: faults of the host, of the configuration, the inventory, CDI specifications and engines."""

from __future__ import annotations

import pytest
from support.doctor import Case, check, examine, problems
from support.engines import CONFIG_TOML, DRIVER, Host

CONFIG = "/etc/nvc/config.toml"
INFO = f"nvc-cli --root {DRIVER} info > /run/shown"
RESTORE = f"printf '%s' '{CONFIG_TOML}' > {CONFIG}; chmod 644 {CONFIG}"
SPEC = f"nvc-cli --root {DRIVER} cdi generate --output /etc/cdi/nvidia.json"
#: A program of NVIDIA's toolkit, as far as a registration needs one.
CRI = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
THEIRS = "printf '#!/bin/sh\\n' > /usr/local/bin/{0}; chmod 755 /usr/local/bin/{0}"
WANTS = "/etc/systemd/system/multi-user.target.wants"
RUNTIME = "nvidia-container-runtime"
CONFIGURE = "nvc-cli runtime configure --engine"
OLD = "mkdir -p /usr/local/old; cp /usr/local/bin/nvc-runtime /usr/local/old"
HOOK = '{"version": "1.0.0", "hook": {"path": "%s"}, "when": {"always": true}, "stages": ["prestart"]}'
HOOKS_D = "/etc/containers/oci/hooks.d"


def hook(name: str, path: str) -> str:
    """Shell lines that make a file of hooks.d."""
    return f"mkdir -p {HOOKS_D}; printf '%s' '{HOOK % path}' > {HOOKS_D}/{name}"


def two(engine: str, theirs: str) -> tuple[str, str]:
    """Shell lines that register nvc with `engine` beside NVIDIA's toolkit, and what is said of that."""
    return (
        f"{THEIRS.format('nvidia-container-runtime')}; {theirs}; {CONFIGURE} {engine}",
        "two toolkits are registered",
    )


CASES = (
    Case("host.cgroups", "echo 2 > /run/two; mount --bind /run/two /proc/sys/kernel/kptr_restrict",
         "the kernel hides device programs", "umount /proc/sys/kernel/kptr_restrict", status="warning"),
    Case("host.selinux", "mkdir -p /run/selinux/booleans; echo 1 > /run/selinux/enforce; "
         "echo 0 0 > /run/selinux/booleans/container_use_devices; mount --bind /run /sys/fs",
         "denies containers the host's devices", "echo 1 1 > /run/selinux/booleans/container_use_devices",
         status="warning", after="umount /sys/fs; rm -r /run/selinux"),
    Case("install.programs", "mv /usr/local/bin/nvc-cdi-hook /run", "/usr/local/bin/nvc-cdi-hook is not a program",
         "mv /run/nvc-cdi-hook /usr/local/bin"),
    Case("config.file", f"echo '[nvc' >> {CONFIG}", f"{CONFIG}: parse:", RESTORE),
    Case("config.file", f"printf '[nvc]\\ntiemout = 3\\n' >> {CONFIG}", "unknown key", RESTORE),
    Case("config.file", f"chmod 666 {CONFIG}", "writable by others"),
    Case("config.file", f"sed -i '1a wrong-key = 1' {CONFIG}", "unknown key [nvidia-container-cli] wrong-key",
         RESTORE, status="warning"),
    Case("config.file", f"mkdir -p /etc/{RUNTIME}; cp {CONFIG} /etc/{RUNTIME}",
         f"/etc/{RUNTIME}/config.toml is not read", f"rm -r /etc/{RUNTIME}", status="warning"),
    Case("config.cgroups", f"sed -i '1a no-cgroups = true' {CONFIG}", "no-cgroups is set", status="warning",
         after=RESTORE),
    Case("config.environment", "mkdir -p /var/lib/kubelet/device-plugins", "any pod can get every GPU",
         f"sed -i '1i accept-nvidia-visible-devices-envvar-when-unprivileged = false' {CONFIG}", status="warning",
         after=f"rm -r /var/lib/kubelet; {RESTORE}"),
    Case("inventory.directory", f"{INFO}; chmod 777 /run/nvc", "/run/nvc can be written by others (mode 0777)"),
    Case("cdi.specs", "mkdir -p /etc/cdi; echo '{' > /etc/cdi/bad.json", "/etc/cdi/bad.json: ",
         after="rm /etc/cdi/.bad.json.aside"),
    Case("cdi.specs", f"{SPEC}; chmod 777 /etc/cdi", "/etc/cdi is writable by others", after="rm /etc/cdi/*"),
    Case("cdi.stale", f"{SPEC}; sed -i s/CDI_STAMP=580/CDI_STAMP=470/ /etc/cdi/nvidia.json",
         "was made for driver 470.159.04-sim", after="rm /etc/cdi/*"),
    Case("cdi.refresh", f"mkdir -p {WANTS} /run/systemd/system; ln -s /gone {WANTS}/nvc-cdi-refresh.service",
         "nvc-cdi-refresh is enabled, but has not written a specification", SPEC,
         after=f"rm -r {WANTS} /etc/cdi/* /run/systemd"),
    Case("cdi.paths", f"{SPEC}; sed -i s,/usr/bin/nvidia-smi\\\",/usr/bin/gone\\\", /etc/cdi/nvidia.json",
         "/usr/bin/gone, which does not exist", after="rm /etc/cdi/*"),
    Case("cdi.hooks", f"{SPEC}; sed -i s,/usr/local/bin/nvc-cdi-hook,/usr/gone/nvc-cdi-hook, /etc/cdi/nvidia.json",
         "calls /usr/gone/nvc-cdi-hook", after="rm /etc/cdi/*"),
    Case("cdi.conflicts", f"{SPEC}; cp /etc/cdi/nvidia.json /etc/cdi/other.json",
         "engines ignore a device that two files define", after="rm /etc/cdi/*"),
    Case("cdi.conflicts", f"{SPEC}; mkdir -p /var/run/cdi; cp /etc/cdi/nvidia.json /var/run/cdi",
         "define the same devices", status="warning", after="rm -f /etc/cdi/* /var/run/cdi/*"),
    Case("engines.docker", f"{OLD}; {CONFIGURE} docker --runtime-path /usr/local/old/nvc-runtime; "
         "rm /usr/local/old/nvc-runtime", "is /usr/local/old/nvc-runtime, which does not exist"),
    Case("engines.docker",
         "cp /etc/docker/daemon.json /run; echo '{\"default-runtime\": \"nvc\"}' > /etc/docker/daemon.json",
         "the default runtime nvc of /etc/docker/daemon.json is not registered",
         after=f"{CONFIGURE} docker --remove; mv /run/daemon.json /etc/docker"),
    Case("engines.docker", "cp /etc/docker/daemon.json /run; echo '{' > /etc/docker/daemon.json",
         "/etc/docker/daemon.json: parse:", "mv /run/daemon.json /etc/docker"),
    Case("engines.docker", *two("docker", "cp /etc/docker/daemon.json /run; sed -i "
         "'1a \"runtimes\": {\"nvidia\": {\"path\": \"nvidia-container-runtime\"}},' /etc/docker/daemon.json"),
         status="warning", after="mv /run/daemon.json /etc/docker; rm /usr/local/bin/nvidia-*"),
    Case("engines.docker", "ln -s /gone /usr/local/sbin/nvidia-container-runtime-hook",
         "/usr/local/sbin/nvidia-container-runtime-hook leads to /gone",
         "rm /usr/local/sbin/nvidia-container-runtime-hook"),
    Case("engines.containerd", *two("containerd", "cp /etc/containerd/config.toml /run; printf '%s\\n' "
         f"'[{CRI}.nvidia]' 'runtime_type = \"io.containerd.runc.v2\"' '[{CRI}.nvidia.options]' "
         "'BinaryName = \"/usr/local/bin/nvidia-container-runtime\"' >> /etc/containerd/config.toml"),
         status="warning", after="mv /run/config.toml /etc/containerd; rm /usr/local/bin/nvidia-*"),
    Case("engines.crio", *two("crio", "mkdir -p /etc/crio/crio.conf.d; "
         "printf '%s\\n' '[crio.runtime.runtimes.nvidia]' "
         "'runtime_path = \"/usr/local/bin/nvidia-container-runtime\"' > /etc/crio/crio.conf.d/50-theirs.conf"),
         status="warning", after="rm -r /etc/crio /usr/local/bin/nvidia-*"),
    Case("engines.podman", *two("podman", "mkdir -p /etc/containers/containers.conf.d; printf '%s\\n' "
         "'[engine.runtimes]' 'nvidia = [\"/usr/local/bin/nvidia-container-runtime\"]' "
         "> /etc/containers/containers.conf.d/10-theirs.conf"),
         status="warning", after="rm -r /etc/containers/containers.conf.d /usr/local/bin/nvidia-*"),
    Case("engines.names", f"{THEIRS.format('nvidia-container-cli')}; "
         "ln -s nvc-hook /usr/local/bin/nvidia-container-runtime-hook", "they may not understand each other",
         "ln -sf nvc-cli /usr/local/bin/nvidia-container-cli", status="warning",
         after="rm /usr/local/bin/nvidia-*"),
    Case("engines.hooks", hook("broken.json", "/gone/nvc-hook"), "calls /gone/nvc-hook",
         f"rm -r {HOOKS_D}"),
    Case("engines.hooks", f"mkdir -p {HOOKS_D}; echo '[' > {HOOKS_D}/bad.json", "bad.json calls no program",
         f"rm -r {HOOKS_D}"),
    Case("engines.hooks", f"{hook('nvc.json', '/usr/local/bin/nvc-hook')}; "
         f"{hook('oci-nvidia-hook.json', '/usr/local/bin/nvidia-container-toolkit')}; "
         f"{THEIRS.format('nvidia-container-toolkit')}", "two toolkits have a hook for every container",
         after=f"rm -r {HOOKS_D} /usr/local/bin/nvidia-*"),
    Case("engines.hooks", f"{hook('nvc.json', '/usr/local/bin/nvc-hook')}; {THEIRS.format(RUNTIME)}; "
         "mkdir -p /etc/crio; printf '%s\\n' '[crio.runtime]' 'default_runtime = \"nvidia\"' "
         f"'[crio.runtime.runtimes.nvidia]' 'runtime_path = \"/usr/local/bin/{RUNTIME}\"' > /etc/crio/crio.conf",
         "crio: containers get GPUs twice", after=f"rm -r {HOOKS_D} /usr/local/bin/nvidia-* /etc/crio"),
)  # fmt: skip


def test_units_without_systemd(host: Host) -> None:
    """A package enables them in any root; where systemd does not run, nothing is late."""
    host.sh(f"mkdir -p {WANTS}; ln -s /gone {WANTS}/nvc-cdi-refresh.service")
    done = examine(host, "", "cdi.refresh")
    host.sh(f"rm -r {WANTS}")
    assert done.returncode == 0 and problems(done.stdout) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}: {case.says[:40]}")
def test_a_fault(host: Host, case: Case) -> None:
    check(host, case)


def test_nothing_is_left(host: Host) -> None:
    left = [one.line for one in problems(examine(host).stdout) if "host." not in one.line]
    assert left == []
