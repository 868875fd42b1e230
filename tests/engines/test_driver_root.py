"""One driver root for every command: the configuration's, or the one that --root names."""

from __future__ import annotations

import pytest
from support.engines import CONFIG_TOML, DRIVER, Host
from support.nightly import few

OTHER = "/srv/other"
#: Commands, each with words that it prints only of DRIVER, which has a GPU more and a newer driver than OTHER.
SHOWS = {
    "info": "Device Index:   1",
    "list --device all": "/dev/nvidia1",
    "configure --dry-run --device all --compute /run/rootfs": "/dev/nvidia1",
    "cdi generate --format json": f"{DRIVER}/usr/lib/",
    "doctor driver.root --all": f"the driver root is {DRIVER}",
    "vgpu run --device 1 --memory 1g -- echo it runs": "it runs",
    "vgpu policy 1 weight; echo laid down": "laid down",
    "vgpu calibrate": "580.159.04-sim",
}


@pytest.fixture(scope="module")
def both(host: Host) -> Host:
    host.sh(f"nvc-cli sim create {OTHER} --gpus=1 --driver-version=570.10")
    return host


@pytest.mark.parametrize(("command", "words"), few(SHOWS.items(), 2), ids=SHOWS)
def test_every_command(both: Host, command: str, words: str) -> None:
    assert words in both.sh(f"nvc-cli {command}").stdout, "the configured one"
    for other in (f"--root {OTHER}", f"--root {OTHER} --ldcache /etc/ld.so.cache"):
        assert words not in both.sh(f"nvc-cli {other} {command}", check=False).stdout
    both.write("/etc/nvc/config.toml", CONFIG_TOML.replace(DRIVER, OTHER))
    try:
        assert words not in both.sh(f"nvc-cli {command}", check=False).stdout
        assert words in both.sh(f"nvc-cli --root {DRIVER} {command}").stdout, "named"
    finally:
        both.write("/etc/nvc/config.toml", CONFIG_TOML)


def test_nvcd(both: Host) -> None:
    for words, root in (("", DRIVER), (f"--root {OTHER}", OTHER)):
        start = f"mkfifo /run/log; nvcd {words} </dev/null 2>/run/log & sed '/ slices/q' </run/log; kill $!"
        assert f" in {root}, 0 slices" in both.sh(f"{start}; rm /run/log").stdout


def test_a_configuration_that_cannot_be_read(both: Host) -> None:
    """Nobody guesses a root; where one is named, and where no driver is looked at, no configuration is needed."""
    both.write("/etc/nvc/config.toml", "[nvidia-container-cli\n")
    try:
        for command in ("info", "list", "configure /run/rootfs", "vgpu run --cores 10 true", "cdi generate"):
            said = both.sh(f"nvc-cli {command}", check=False).stderr
            assert said.startswith("nvc-cli: configuration error: parse: /etc/nvc/config.toml"), command
        both.sh(f"nvc-cli --root {DRIVER} info; nvc-cli --version; nvc-cli vgpu ls; nvc-cli help config")
        both.sh("nvc-cli explain NVC-1801; nvc-cli cdi list; nvc-cli completion bash")
        said = both.sh("nvc-cli config check", check=False).stdout
        assert said.startswith("configuration error: parse: /etc/nvc/config.toml")
        assert "input error: --timeout: 0" in both.sh("nvc-cli --timeout 0 config check", check=False).stderr
    finally:
        both.write("/etc/nvc/config.toml", CONFIG_TOML)
