"""config.toml: every key, what is wrong with a file, and the parsed form that is kept."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from support import REPO

from nvc.request import config as module
from nvc.request.config import Config, ConfigError, load
from nvc.request.config.file import parse
from nvc.request.config.keys import KEYS

PATH = "/etc/nvc/config.toml"


def settings(text: str) -> dict[str, Any]:
    """What the file changes of the defaults."""
    found, default = parse(text.encode(), PATH), Config()
    return {
        name: getattr(found, name)
        for name in Config._fields
        if getattr(found, name) != getattr(default, name)
    }


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("disable-require = true", {"disable_require": True}),
        ('swarm-resource = " A, ,B "', {"swarm_resource": ("A", "B")}),
        (
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false",
            {"accept_environment_unprivileged": False},
        ),
        ("accept-nvidia-visible-devices-as-volume-mounts = true", {"accept_volume_mounts": True}),
        ('supported-driver-capabilities = "all"', {}),
        ('supported-driver-capabilities = "video, compute"', {"supported_capabilities": ("compute", "video")}),
        ('supported-driver-capabilities = ""', {"supported_capabilities": ()}),
        ('[nvidia-container-cli]\nroot = ""\nldcache = ""\nuser = ""\ndebug = ""', {}),
        ('[nvidia-container-cli]\nenvironment = ["CUDA_MPS_PIPE_DIRECTORY=/m"]', {"mps_directory": "/m"}),
        (
            "[nvidia-container-cli]\nload-kmods = false\nno-cgroups = true",
            {"load_kmods": False, "no_cgroups": True},
        ),
        ('[nvidia-container-cli]\nuser = "7:8"', {"uid": 7, "gid": 8}),
        ('[nvidia-container-cli]\nuser = "root:root"', {"uid": 0, "gid": 0}),
        ('[nvidia-container-cli]\nldconfig = "@/sbin/ldconfig"', {"ldconfig": "@/sbin/ldconfig"}),
        ('[nvidia-container-cli]\npath = "/x"\nno-pivot = true', {}),
        ('[nvidia-container-runtime]\nmode = "cdi"\nlog-level = "debug"', {"mode": "cdi", "log_level": "debug"}),
        ('[nvidia-container-runtime]\ndebug = "/dev/null"\nruntimes = ["/x"]', {"runtimes": ("/x",)}),
        (
            '[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["/a"]\ndefault-kind = "a/b"',
            {"cdi_spec_dirs": ("/a",), "cdi_default_kind": "a/b"},
        ),
        (
            '[nvidia-container-runtime.modes.cdi]\nannotation-prefixes = ["p/"]',
            {"cdi_annotation_prefixes": ("p/",)},
        ),
        (
            '[nvidia-container-runtime.modes.jit-cdi]\nnvcdi-disable-hooks = ["all"]\nnvcdi-feature-flags = ["x"]',
            {"jit_disabled_hooks": ("all",), "jit_feature_flags": ("x",)},
        ),
        ('[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "mount"', {"cuda_compat_mode": "mount"}),
        ('[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = ""', {}),
        ('[nvidia-ctk]\npath = "nvidia-ctk"', {}),
        ('[nvidia-ctk]\npath = "/opt/nvidia-ctk"', {"cdi_hook_path": "/opt/nvidia-ctk"}),
        ('[nvidia-container-runtime-hook]\npath = "/opt/x"', {"hook_path": "/opt/x"}),
        ("[nvidia-container-runtime-hook]\nskip-mode-detection = true", {"skip_mode_detection": True}),
        ("[features]\ndisable-imex-channel-creation = true", {"disable_imex_channel_creation": True}),
        ("[features]\nignore-imex-channel-requests = true", {"ignore_imex_channel_requests": True}),
        ('[nvc]\nlog = "/l"\ntimeout = 2\ninventory = false', {"log": "/l", "timeout": 2.0, "inventory": False}),
        ('[nvc]\nlibrary-directories = ["/a", "/b"]', {"library_directories": ("/a", "/b")}),
        ('[nvc]\nkinds = ["mofed", "gds", "mofed"]', {"kinds": ("mofed", "gds")}),
        (
            '[nvc]\nvgpu-memory = "25%"\nvgpu-memory-max = "40GiB"\nvgpu-uncounted = true',
            {"vgpu_memory": "25%", "vgpu_memory_max": "40GiB", "vgpu_uncounted": True},
        ),
        ("[nvc]\nvgpu-cores = '25%'\nvgpu-cores-max = '100%'", {"vgpu_cores": 25, "vgpu_cores_max": 100}),
        (
            "[nvc]\nvgpu-cores = 25\nvgpu-cores-max = 50\nvgpu-weight = 2\nvgpu-weight-max = 8",
            {"vgpu_cores": 25, "vgpu_cores_max": 50, "vgpu_weight": 2, "vgpu_weight_max": 8},
        ),
        ('[nvc]\nvgpu-period = "50ms"', {"vgpu_period": "50ms"}),
        ('[nvc]\nvgpu-policy = "4"', {"vgpu_policy": "4"}),
        ('[nvc]\nvgpu-isolation = "kernel"', {"vgpu_isolation": "kernel"}),
        ('[nvcd]\nswap-size = "64GiB"', {"nvcd_swap_size": "64GiB"}),
        ('[nvcd]\nswap-size = ""', {}),
        ('[nvcd]\nweb = "127.0.0.1:9395"', {"nvcd_web": "127.0.0.1:9395"}),
        ('[nvcd]\nmetrics = "unix:/run/metrics"', {"nvcd_metrics": "unix:/run/metrics"}),
        (
            '[nvcd]\nmetrics = "[::1]:9394"\non-bypass = "stop"\non-excess = "stop"',
            {"nvcd_metrics": "[::1]:9394", "nvcd_on_bypass": "stop", "nvcd_on_excess": "stop"},
        ),
        (
            '[[nvc.vgpu]]\nname = "small"\nmemory = "10GiB"\n[[nvc.vgpu]]\nname = "half"\nmemory = "50%"\n'
            'devices = ["0", "1:0"]\ncores = "50%"\nweight = 2\npolicy = "fixed"\n'
            'request = "5GiB"\nperiod = "50ms"\nisolation = "kernel"',
            {
                "vgpu_devices": (
                    ("small", ("all",), (("memory", "10GiB"),)),
                    ("half", ("0", "1:0"), (
                        ("memory", "50%"), ("reserved", "5GiB"), ("cores", "50"), ("period", "50ms"),
                        ("weight", "2"), ("policy", "fixed"), ("isolation", "kernel"),
                    )),
                )
            },
        ),
    ],
)
def test_keys(text: str, wanted: dict[str, Any]) -> None:
    assert settings(text) == wanted


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a = \nb = 1", "parse: .*line 1, column"),
        ("\n[x\n", "line 2"),
        ("a = " + "[" * 5000 + "]" * 5000, "parse: "),
        ("disable-require = 1", "disable-require: want true or false"),
        ("swarm-resource = []", "swarm-resource: want a text"),
        ('supported-driver-capabilities = "compute,magic"', "magic is none of all, compat32"),
        ('[nvidia-container-cli]\nroot = "relative"', r"\[nvidia-container-cli\] root: want an absolute path"),
        ('[nvidia-container-cli]\nroot = "/\\u0000"', "want a text"),
        ('[nvidia-container-cli]\nuser = "no-such-user"', "user: no-such-user: no such user or group"),
        ('[nvidia-container-cli]\nuser = "1:x:y"', "user: 1:x:y"),
        ('[nvidia-container-cli]\nenvironment = "A=1"', "want a list of texts"),
        ('[nvidia-container-cli]\nenvironment = ["CUDA_MPS_PIPE_DIRECTORY=x"]', "want an absolute path"),
        ('[nvidia-container-runtime]\nmode = "magic"', "want one of auto, legacy"),
        ('[nvidia-container-runtime.modes.legacy]\ncuda-compat-mode = "magic"', "want one of ldconfig"),
        ('[nvc]\nlibrary-directories = ["lib"]', "library-directories: want a list of absolute paths"),
        ('[nvc]\nkinds = ["imex"]', "kinds: imex is none of gds, mofed, gdrcopy, nvswitch"),
        ("[nvc]\ntimeout = 0", "want seconds"),
        ("[nvc]\ntimeout = nan", "want seconds"),
        ('[nvc]\nlog = "relative"', "want an absolute path"),
        ('[nvc]\nvgpu-variables = "maybe"', "want one of obey, refuse, ignore"),
        ('[nvc]\nvgpu-memory = "10gb"', "vgpu-memory: 10gb: a unit of 1000 or of 1024.; write 10GiB"),
        ("[nvc]\nvgpu-cores = 101", "vgpu-cores: want a whole number from 0 to 100"),
        ('[nvc]\nvgpu-cores = "50k"', "vgpu-cores: want a whole number from 0 to 100"),
        ('[nvc]\nvgpu-cores = "101%"', 'to 100, like 25 or "25%"'),
        ('[nvc]\nvgpu-policy = "best"', "vgpu-policy: best: no such policy; the policies are fair"),
        ('[nvcd]\nmetrics = "9394"', "metrics: want unix:/path or address:port"),
        ('[nvcd]\nmetrics = "127.0.0.1:0000080000"', "metrics: want unix:/path or address:port"),
        ("nvcd = 5", r"invalid value: .*: nvcd: want a table, \[nvcd\]"),
        ('[[nvcd]]\non-bypass = "stop"', r"nvcd: want a table, \[nvcd\]"),
        ("[nvidia-container-runtime]\nmodes = 1", r"modes: want a table, \[nvidia-container-runtime.modes\]"),
        ('[nvcd]\nswap-size = "25%"', "swap-size: 25%: want an amount, like 64GiB"),
        ('[nvcd]\nswap-size = "64"', "swap-size: 64: 64 bytes is less than 1 MiB"),
        ('[nvcd]\non-bypass = "kill"', "on-bypass: want one of report, deny, stop"),
        ("[nvc]\nlogg = 1", r"unknown key: .*: \[nvc\] logg; the nearest known key is log in \[nvc\]"),
        ("[nvc.log-file]\nx = 1", r"unknown key: .*\[nvc.log-file\] x"),
        ('[nvc.vgpu]\nname = "a"', r"\[nvc\] vgpu: want tables, each beginning with \[\[nvc.vgpu\]\]"),
        ('[[nvc.vgpu]]\nmemory = "1g"', "vgpu: a table without a name"),
        ('[[nvc.vgpu]]\nname = "1a"\nmemory = "1g"', "vgpu: 1a: want a name"),
        ('[[nvc.vgpu]]\nname = "all"\nmemory = "1g"', "vgpu: all: want a name"),
        ('[[nvc.vgpu]]\nname = "a"', "vgpu: a: memory: want a size"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "10gb"', "vgpu: a: memory: 10gb: a unit of 1000"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\nrequest = "2g"', "vgpu: a: request: 2g is more than memory, 1g"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\nrequest = 1', "vgpu: a: request: want a size"),
        (
            '[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\nperiod = "50ms"',
            "vgpu: a: period: 50ms: policy native of a has no periods; leave it out, or ask for a cap",
        ),
        (
            '[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\ncores = 20\nperiod = "2s"',
            "vgpu: a: period: 2s: want 20ms to 1s",
        ),
        ('[nvc]\nvgpu-period = "5ms"', "vgpu-period: 5ms: want 20ms to 1s"),
        ('[nvc]\nvgpu-period = 50', "vgpu-period: want"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\nsize = 1', "vgpu: a: unknown key size"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\ncores = 101', "vgpu: a: cores: want a whole number from 0"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\npolicy = "best"', "vgpu: a: policy: want one of fair"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\npolicy = "fixed"', "vgpu: a: policy: fixed: a has no cap"),
        ('[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\ndevices = []', "vgpu: a: devices: want"),
        (2 * '[[nvc.vgpu]]\nname = "a"\nmemory = "1g"\n', "vgpu: a: two tables of that name"),
    ],
)
def test_what_is_wrong_is_said(text: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause) as raised:
        found = parse(text.encode(), PATH).replace(path=PATH)
        assert found.warnings and re.search(cause, found.warnings[0]), "said though nobody uses it"
        for name in Config._fields:
            getattr(found, name)
    assert str(raised.value).startswith("configuration error: ")
    assert PATH in str(raised.value) and "\n" not in str(raised.value)


WRONG = """
[nvidia-container-cli]
user = "no-such-user"
no-pivot = "what nvc does not use"
[nvidia-container-runtime]
mode = "magic"
modes = 1
[nvc]
timeout = 20
"""


def test_a_wrong_value_of_nvidia_concerns_who_uses_it() -> None:
    config = parse(WRONG.encode(), PATH).replace(path=PATH)
    assert len(config.warnings) == 4 and all("what uses it does not start" in one for one in config.warnings)
    assert config.timeout == 20 and config.root == "/" and config.log_level == "info"
    for name in ("uid", "gid", "mode", "cuda_compat_mode", "cdi_spec_dirs"):
        with pytest.raises(ConfigError, match=f"invalid value: {PATH}: "):
            getattr(config, name)
    assert (
        Config(*config) == config and hash(Config(*config)) == hash(config) and "magic" not in repr(config)
    )
    mended = config.replace(mode="cdi")
    assert mended.mode == "cdi" and dict(mended.refused).keys() == dict(config.refused).keys() - {"mode"}
    with pytest.raises(AttributeError):
        getattr(config, "modes")  # noqa: B009


def test_unknown_keys_of_nvidia_are_warnings() -> None:
    text = (
        'new = 1\n[nvidia-container-cli]\n"od\\nd" = 1\nenvironment = ["A=1"]\n[future.table]\nkey = {a = 1}'
    )
    warnings = parse(text.encode(), PATH).warnings
    assert len(warnings) == 4 and all(warning.isprintable() for warning in warnings)
    assert warnings[0] == f"{PATH}: unknown key new"
    assert "A has no effect" in warnings[2]
    assert warnings[3].endswith("[future.table.key] a")


def test_not_text() -> None:
    with pytest.raises(ConfigError, match="not UTF-8 at byte 2"):
        parse(b"a \xff", PATH)


@pytest.fixture
def file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Factory: writes a configuration file, the only one that can be found."""
    path = tmp_path / "config.toml"
    monkeypatch.setattr(module, "PATHS", (str(tmp_path / "none/config.toml"), str(path)))
    os.mkdir(tmp_path / "run", 0o700)

    def write(text: str) -> str:
        path.write_text(text)
        path.chmod(0o644)
        return str(path)

    return write


def test_precedence(file: Callable[[str], str], tmp_path: Any) -> None:
    run = str(tmp_path / "run")
    assert load(directory=run) == Config()
    path = file("disable-require = true")
    assert load(directory=run).path == path and load(directory=run).disable_require
    named = tmp_path / "named.toml"
    named.write_text("")
    named.chmod(0o600)
    assert load(str(named), run).path == str(named)
    with pytest.raises(ConfigError, match="none: no such file or directory"):
        load(str(tmp_path / "none"), run)


def test_the_parsed_form_is_kept(file: Callable[[str], str], tmp_path: Any, monkeypatch: Any) -> None:
    run = str(tmp_path / "run")
    path = file("disable-require = true\nnew = 1")
    first = load(directory=run)
    parsed: list[str] = []
    from nvc.request.config import file as parser

    real = parser.parse
    monkeypatch.setattr(parser, "parse", lambda data, name: parsed.append(name) or real(data, name))
    assert load(directory=run) == first and first.warnings and parsed == []
    before = os.stat(path)
    with open(path, "r+", encoding="utf-8") as again:  # the same size and time: ctime tells
        again.write("disable-require = nope"[:18] + "true")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load(directory=run).identity != first.identity and parsed == [path]
    os.chmod(path, 0o600)
    load(directory=run)
    assert parsed == [path] * 2
    for kept in os.listdir(run):  # whatever is wrong with it, the file itself is read
        with open(f"{run}/{kept}", "r+b") as damaged:
            damaged.write(b"\0" * 100)
    assert load(directory=run).disable_require and parsed == [path] * 3


def test_files_that_others_may_write(file: Callable[[str], str], tmp_path: Any) -> None:
    run = str(tmp_path / "run")
    path = file("")
    os.chmod(path, 0o664)
    with pytest.raises(ConfigError, match="writable by others; chmod go-w"):
        load(directory=run)
    os.unlink(path)
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(directory=run)
    os.unlink(path)
    file("")
    os.truncate(path, 100 << 20)
    with pytest.raises(ConfigError, match="larger than"):
        load(directory=run)


def test_every_key_is_documented() -> None:
    """In a table row of docs/configuration.md below the heading of its table, and no others are there."""
    with open(os.path.join(REPO, "docs/configuration.md"), encoding="utf-8") as page:
        text = page.read()
    found: dict[str, set[str]] = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        name = section.splitlines()[0].strip("`[]")
        found["" if name == "Top level" else name] = set(
            re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)
        )
    assert found == {table: set(keys) for table, keys in KEYS.items()}
