"""containerd 1.6: `ctr` starts containers through nvc-runtime; its own reading of what `configure` wrote."""

from __future__ import annotations

from support.engines import Host

CONFIGURE = "nvc-cli runtime configure --engine containerd"
CRI = "io.containerd.grpc.v1.cri"


def ctr_run(host: Host, options: str, script: str, check: bool = True) -> list[str]:
    """The lines of a shell script in a container, and of ctr's errors."""
    binary = "--runc-binary /usr/local/bin/nvc-runtime"
    # Into a file: ctr ends, now and then, without what the program wrote.
    words = f"--rootfs /run/rootfs c1 /bin/sh -c '{{ {script}; }} >/seen 2>&1'"
    done = host.sh(f"ctr run --rm {binary} {options} {words}", check=False)
    assert (done.returncode == 0) is check, done.stderr
    seen = host.sh("cd /run/rootfs; if [ -e seen ]; then cat seen; rm seen; fi").stdout
    return (seen + done.stderr).splitlines()


def test_ctr(host: Host) -> None:
    host.sh("systemctl start containerd")
    lines = ctr_run(
        host, "--env NVIDIA_VISIBLE_DEVICES=1", "nvidia-smi -L; ls /dev; cat /dev/nvidia1", check=False
    )
    assert lines[0].startswith("GPU 0:") and "nvidia1" in lines and "nvidia0" not in lines
    assert "No such device or address" in lines[-1]
    assert ctr_run(host, "", "ls /dev | grep -c nvidia || true") == ["0"]
    (error,) = ctr_run(host, "--env NVIDIA_VISIBLE_DEVICES=0,3", "true", check=False)
    assert "nvc-runtime: device error: 3: unknown device" in error
    host.sh("systemctl stop containerd")


def effective(host: Host) -> str:
    """The CRI plugin's runtimes, as containerd reads its configuration."""
    lines = host.sh("containerd config dump").stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip() == f'[plugins."{CRI}".containerd]')
    return "\n".join(line.strip() for line in lines[start : start + 120])


def test_the_configuration_that_containerd_reads(host: Host) -> None:
    before = host.read("/etc/containerd/config.toml")
    host.sh(f"{CONFIGURE} --set-as-default")
    seen = effective(host)
    assert 'default_runtime_name = "nvc"' in seen
    assert f'[plugins."{CRI}".containerd.runtimes.nvc]' in seen
    assert 'BinaryName = "/usr/local/bin/nvc-runtime"' in seen
    assert f'[plugins."{CRI}".containerd.runtimes.runc]' in seen, (
        "naming one runtime must not hide the built-in one"
    )
    assert "# There is no pod network on this host." in host.read("/etc/containerd/config.toml")
    assert "nothing to change" in host.sh(f"{CONFIGURE} --set-as-default").stderr
    host.sh(f"{CONFIGURE} --remove")
    assert host.read("/etc/containerd/config.toml") == before


def test_an_old_file(host: Host) -> None:
    """Without `version` a file is of version 1, whose plugin has another name."""
    host.write("/run/old.toml", 'oom_score = -999\n\n[plugins.cri]\n  stream_server_port = "0"\n')
    host.sh(f"{CONFIGURE} --config /run/old.toml")
    text = host.read("/run/old.toml")
    assert "[plugins.cri.containerd.runtimes.nvc]" in text and "version" not in text
    dump = host.sh("containerd --config /run/old.toml config dump").stdout
    assert 'BinaryName = "/usr/local/bin/nvc-runtime"' in dump
    host.sh(f"{CONFIGURE} --config /run/old.toml --remove")


def test_a_drop_in_that_masks_it(host: Host) -> None:
    """Before 2.1 a drop-in replaces the whole table: what is written to the main file would do nothing."""
    host.write("/run/m/conf.d/99-other.toml", f'version = 2\n[plugins."{CRI}"]\n  sandbox_image = "x"\n')
    host.write(
        "/run/m/config.toml",
        f'version = 2\nimports = ["/run/m/conf.d/*.toml"]\n[plugins."{CRI}".cni]\n  bin_dir = "/b"\n',
    )
    before = host.read("/run/m/config.toml")
    done = host.sh(f"{CONFIGURE} --config /run/m/config.toml", check=False)
    assert (
        done.returncode == 1
        and "a drop-in replaces the table" in done.stderr
        and "99-other.toml" in done.stderr
    )
    assert host.read("/run/m/config.toml") == before
    host.sh(f"{CONFIGURE} --config /run/m/conf.d/99-other.toml")
    assert "nvc-runtime" in host.sh("containerd --config /run/m/config.toml config dump").stdout


def test_what_it_cannot_do(host: Host) -> None:
    done = host.sh(f"{CONFIGURE} --cdi", check=False)
    assert done.returncode == 1 and "containerd 1.6.20 has no CDI, which needs 1.7" in done.stderr
    host.write("/run/bad.toml", "version = 2\na = [\n")
    done = host.sh(f"{CONFIGURE} --config /run/bad.toml", check=False)
    assert done.returncode == 1 and "(3, 1)" in done.stderr, done.stderr
    assert host.read("/run/bad.toml") == "version = 2\na = [\n"
