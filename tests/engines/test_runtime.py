"""nvc-runtime as a program: what it passes on, what it edits, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import need
from support.bundle import default_config
from support.engines import CONFIG_TOML, Host

STUB = "/run/stub/runc"
#: In the low-level runtime's place: tells what reached it.
STUB_SCRIPT = f"""#!{need('python3')} -IS
import os, signal
fds = {{}}
for fd in os.listdir("/proc/self/fd"):
    try:
        fds[fd] = os.readlink("/proc/self/fd/" + fd)
    except OSError:
        pass  # the one that listed them
with open("/run/stub/seen", "w") as out:
    import json, sys
    seen = {{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "fds": fds}}
    seen["ignored"] = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    json.dump(seen, out)
"""


def seen(host: Host) -> dict[str, Any]:
    """What reached the low-level runtime."""
    found: dict[str, Any] = json.loads(host.read("/run/stub/seen"))
    return found


def runtimes(*names: str) -> str:
    """A configuration that names low-level runtimes."""
    return f"{CONFIG_TOML}\n[nvidia-container-runtime]\n# first there wins\nruntimes = {json.dumps(names)}\n"


@pytest.fixture
def bundle(host: Host) -> Iterator[str]:
    """A bundle on the host, which asks for GPU 1."""
    write(host, default(host, "NVIDIA_VISIBLE_DEVICES=1"))
    yield "/run/b"
    host.write("/etc/nvc/config.toml", CONFIG_TOML)


def default(host: Host, *variables: str) -> dict[str, Any]:
    config = default_config(host.rootfs())
    config["process"]["env"] += variables
    config["process"]["args"] = ["/bin/sh", "-c", "nvidia-smi -L; ls /dev; cat /dev/nvidia1"]
    return config


def write(host: Host, config: dict[str, Any] | str) -> str:
    text = config if isinstance(config, str) else json.dumps(config, indent=1)
    host.write("/run/b/config.json", text)
    return text


def listing(host: Host) -> str:
    """What is in the bundle: inode, size, time of change and name of each file."""
    return host.sh("cd /run/b; find . -mindepth 1 -exec stat -c '%i %s %z %n' {} +").stdout


def refused(host: Host, command: str = "nvc-runtime create --bundle /run/b x") -> str:
    """The one line of a call that must fail and leave no other trace."""
    before = listing(host)
    done = host.sh(command, check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith("nvc-runtime: ")
    assert listing(host) == before
    return done.stderr.rstrip("\n")


@pytest.fixture
def stub(host: Host, bundle: str) -> None:
    host.write(STUB, STUB_SCRIPT, 0o755)
    host.write("/etc/nvc/config.toml", runtimes("no-such-runtime", STUB))


@pytest.mark.parametrize(
    "verb", ["state x", "start x", "kill x 9", "delete --force x", "--root create exec x sh"]
)
def test_other_verbs_pass_through(host: Host, stub: None, verb: str) -> None:
    """Not even an interpreter is needed for them."""
    host.sh("mv /usr/local/lib/nvc/launch.conf /run/away")
    try:
        before = host.read("/run/b/config.json")
        host.sh(f"cd /run/b; exec 7</etc/passwd; nvc-runtime --log=/run/l {verb} < /etc/group")
        found = seen(host)
        assert found["argv"] == ["--log=/run/l", *verb.split()] and found["cwd"] == "/run/b"
        assert found["fds"]["7"] == "/etc/passwd" and found["fds"]["0"] == "/etc/group"
        assert host.read("/run/b/config.json") == before
        assert "launch.conf" in refused(host)
    finally:
        host.sh("mv /run/away /usr/local/lib/nvc/launch.conf")


def test_create_passes_on_what_an_engine_gave(host: Host, stub: None) -> None:
    """Environment, descriptors, directory and words are as if nobody had come between."""
    given = {"NOTIFY_SOCKET": "/run/n", "LISTEN_FDS": "1", "LD_LIBRARY_PATH": "/none", "PYTHONPATH": "/none"}
    words = "--log /run/log --log-format json --systemd-cgroup create --pid-file /run/p -b=/run/b x"
    variables = " ".join(f"{name}={value}" for name, value in given.items())
    call = f"env -i {variables} /usr/local/bin/nvc-runtime {words}"
    host.sh(f"cd /run; exec 3</etc/passwd 9</etc/group; {call} </etc/hosts >/run/out 2>/run/err")
    found = seen(host)
    assert found["argv"] == words.split() and found["cwd"] == "/run"
    assert found["env"] == {**given, "LC_CTYPE": "C.UTF-8"}  # the stub's own interpreter sets that one
    files = ("/etc/hosts", "/run/out", "/run/err", "/etc/passwd", "/etc/group")
    assert found["fds"] == dict(zip("01239", files))
    assert "nvc-hook" in host.read("/run/b/config.json")


@pytest.mark.parametrize(
    "words",
    [
        "create --bundle=/run/b x", "create -bundle /run/b x", "create -b /run/b x", "create -b/run/b x",
        "run --bundle /run/b x", "--root /run/x --rootless true create --no-pivot --bundle /run/b x",
        "--unknown value create --bundle /run/b x", "create --config config.json --bundle /run/b x",
    ],
)  # fmt: skip
def test_the_bundle_is_found(host: Host, stub: None, words: str) -> None:
    host.sh(f"nvc-runtime {words}")
    assert "nvc-hook" in host.read("/run/b/config.json")


def test_the_bundle_is_the_current_directory(host: Host, stub: None) -> None:
    host.sh("cd /run/b; nvc-runtime create x")
    assert "nvc-hook" in host.read("/run/b/config.json")


@pytest.mark.parametrize(
    "words", ["create --help", "--help create --bundle /run/b x", "create -h", "list create"]
)
def test_help_edits_nothing(host: Host, stub: None, words: str) -> None:
    before = host.read("/run/b/config.json")
    host.sh(f"cd /run/b; nvc-runtime {words}")
    assert host.read("/run/b/config.json") == before


def test_standard_streams_may_be_closed(host: Host, stub: None) -> None:
    host.sh("cd /run/b; nvc-runtime create x <&- >&- 2>&-")
    assert "nvc-hook" in host.read("/run/b/config.json")


def test_a_caller_may_ignore_sigchld(host: Host, stub: None) -> None:
    """Then there is no status to wait for, unless somebody sees to it; and the runtime still inherits that."""
    host.sh("cd /run/b; env --ignore-signal=CHLD nvc-runtime create x")
    assert "nvc-hook" in host.read("/run/b/config.json")
    assert seen(host)["ignored"]


def test_a_container(host: Host, bundle: str) -> None:
    done = host.sh("nvc-runtime run --bundle /run/b c1", check=False)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("GPU 0:") and "nvidia1" in lines and "nvidia0" not in lines
    assert "No such device or address" in done.stderr
    config = json.loads(host.read("/run/b/config.json"))
    assert config["hooks"] == {
        "prestart": [
            {
                "path": "/usr/local/lib/nvc/bin/nvidia-container-runtime-hook",
                "args": ["nvc-hook", "prestart"],
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            }
        ]
    }
    nodes = {node["path"]: (node["major"], node["minor"]) for node in config["linux"]["devices"]}
    assert nodes["/dev/nvidia1"] == (195, 1) and nodes["/dev/nvidiactl"] == (195, 255) and len(nodes) == 4
    rules = config["linux"]["resources"]["devices"][-4:]
    assert {(rule["major"], rule["minor"]) for rule in rules} == set(nodes.values())
    assert {rule["access"] for rule in rules} == {"rw"}, "who may make nodes could make those of other GPUs"


def test_nothing_asked_for_nothing_touched(host: Host, bundle: str) -> None:
    for variables in ((), ("NVIDIA_VISIBLE_DEVICES=void",), ("NVIDIA_VISIBLE_DEVICES=",)):
        text = write(host, json.dumps(default(host, *variables)).replace('"args": ', ' "args" :\t'))
        before = listing(host)
        host.sh("nvc-runtime run --bundle /run/b c1", check=False)
        assert host.read("/run/b/config.json") == text
        assert listing(host) == before


def test_foreign_content_owner_and_mode_are_kept(host: Host, bundle: str) -> None:
    config = default(host, "NVIDIA_VISIBLE_DEVICES=0")
    config["vendor"] = {"float": "@F", "big": "@B", "zero": "@Z", "text": "é\ud800\\/", "null": None, "yes": True}
    numbers = {'"@F"': "1.50e+00", '"@B"': "18446744073709551615", '"@Z"': "-0.0"}
    text = json.dumps(config, indent="\t")
    for name, number in numbers.items():
        text = text.replace(name, number)
    write(host, text)
    host.sh(
        "chown 12:34 /run/b/config.json; chmod 640 /run/b/config.json; nvc-runtime run --bundle /run/b c1 || true"
    )
    after = host.read("/run/b/config.json")
    assert host.sh("stat -c '%u:%g %a' /run/b/config.json").stdout == "12:34 640\n"
    for name, number in (("float", "1.5"), ("big", "18446744073709551615"), ("zero", "-0.0")):
        assert f'\t\t"{name}": {number}' in after
    assert json.loads(after)["vendor"] == json.loads(text)["vendor"]
    assert list(json.loads(after))[: len(config)] == list(config)
    assert host.sh("ls -A /run/b").stdout == "config.json\n"


@pytest.mark.parametrize(
    ("kind", "path"),
    [("prestart", "/opt/nvidia-container-runtime-hook"), ("createRuntime", "/usr/bin/nvidia-container-toolkit")],
)
def test_a_hook_that_is_there_is_enough(host: Host, stub: None, kind: str, path: str) -> None:
    config = default(host, "NVIDIA_VISIBLE_DEVICES=0")
    hooks = {kind: [{"path": path}], "poststop": [{"path": "/bin/true"}]}
    write(host, {**config, "hooks": hooks})
    host.sh("nvc-runtime create --bundle /run/b x")
    after = json.loads(host.read("/run/b/config.json"))
    assert after["hooks"] == hooks and after["linux"]["devices"]


def test_the_cause_is_in_the_log(host: Host, bundle: str) -> None:
    write(host, default(host, 'NVIDIA_VISIBLE_DEVICES=a"b\\\n'))
    line = refused(
        host, "rm -f /run/log; nvc-runtime --log /run/log --log-format json create --bundle /run/b x"
    )
    entry = json.loads(host.read("/run/log"))
    assert entry["level"] == "error" and entry["msg"] == line and entry["time"].endswith("Z")
    refused(host, "nvc-runtime --log=/run/log --log-format=text create --bundle /run/b x")
    text = host.read("/run/log").splitlines()[-1]
    assert text.startswith('time="2') and ' level=error msg="nvc-runtime: ' in text
    refused(host, "nvc-runtime --log /run/no/such/log create --bundle /run/b x")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "empty"),
        ('{"NVIDIA_VISIBLE_DEVICES": "1.0.2"', "truncated"),
        ("[" * 100000 + '"NVIDIA_VISIBLE_DEVICES"' + "]" * 100000, "levels"),
        ('{"ociVersion": "1.0.2", "process": {"env": [7, "NVIDIA_VISIBLE_DEVICES=0"]}, "root": {"path": "/r"}}',
         "process.env"),
        ('{"ociVersion": "1.0.2", "process": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]}, "root": {"path": "/r"},'
         '"hooks": {"prestart": 1}}', "prestart is of the wrong type"),
    ],
)  # fmt: skip
def test_bad_configurations(host: Host, bundle: str, text: str, cause: str) -> None:
    write(host, text)
    assert cause in refused(host)


def test_bad_files(host: Host, bundle: str) -> None:
    host.sh("truncate -s 100M /run/b/config.json")
    assert "larger than" in refused(host)
    host.sh("rm /run/b/config.json; mkfifo /run/b/config.json")
    assert "not a regular file" in refused(host)
    host.sh("rm /run/b/config.json")
    assert "/run/b/config.json: no such file or directory" in refused(host)
    assert "no such file" in host.sh("nvc-runtime create --bundle /run/none x", check=False).stderr


def test_a_link_is_followed_and_stays(host: Host, bundle: str) -> None:
    host.sh("mv /run/b/config.json /run/real.json; ln -s /run/real.json /run/b/config.json")
    host.sh("nvc-runtime run --bundle /run/b c1 || true; test -L /run/b/config.json")
    assert "nvc-hook" in host.read("/run/real.json")
    host.sh("rm /run/b/config.json /run/real.json")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (runtimes("none", "/run/none"), "none: no low-level runtime found"),
        (runtimes("/usr/local/bin/nvc-runtime", "nvc-runtime"), "no low-level runtime found"),
        ("[nvidia-container-runtime]\nruntimes = \"runc\"\n", "is not a list"),
        ("[nvidia-container-runtime]\nmode = \"csv\"\n", "csv: not supported"),
    ],
)  # fmt: skip
def test_bad_settings(host: Host, bundle: str, text: str, cause: str) -> None:
    host.write("/etc/nvc/config.toml", text)
    assert cause in refused(host)


def test_settings_of_others_are_refused(host: Host, bundle: str) -> None:
    host.sh("chmod o+w /etc/nvc/config.toml")
    assert "writable by others" in refused(host, "nvc-runtime state x")
    host.sh("chmod o-w /etc/nvc/config.toml")


def test_a_list_over_several_lines(host: Host, stub: None) -> None:
    names = f"[ # why\n  'none',\n  \"{STUB}\", # so\n]\n"
    text = f"[other]\nruntimes = ['x']\n[nvidia-container-runtime]\nruntimes = {names}"
    host.write("/etc/nvc/config.toml", text)
    host.sh("rm -f /run/stub/seen; nvc-runtime state x; test -e /run/stub/seen")


MODE_CDI = f'{CONFIG_TOML}\n[nvidia-container-runtime]\nmode = "cdi"\n'


def test_mode_cdi(host: Host, bundle: str) -> None:
    """All of it is in the configuration, the hook that an engine had added is gone."""
    host.write("/etc/nvc/config.toml", MODE_CDI)
    hooks = {"prestart": [{"path": "/usr/bin/nvidia-container-runtime-hook"}]}
    write(host, {**default(host, "NVIDIA_VISIBLE_DEVICES=1"), "hooks": hooks})
    done = host.sh("nvc-runtime run --bundle /run/b c1", check=False)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("GPU 0:") and "nvidia1" in lines and "nvidia0" not in lines, done
    config = json.loads(host.read("/run/b/config.json"))
    assert config["hooks"]["prestart"] == []
    assert "NVIDIA_VISIBLE_DEVICES=void" in config["process"]["env"]
    assert any("libcuda.so" in mount["destination"] for mount in config["mounts"])
    assert all(hook["env"] for hook in config["hooks"]["createContainer"])
    again = host.read("/run/b/config.json")
    host.sh("nvc-runtime run --bundle /run/b c1", check=False)
    assert host.read("/run/b/config.json") == again


def test_mode_cdi_checks_requirements(host: Host, bundle: str) -> None:
    host.write("/etc/nvc/config.toml", MODE_CDI)
    write(host, default(host, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_X=cuda>=99.0"))
    assert "cuda>=99.0" in refused(host)


def test_a_device_of_a_specification_file(host: Host, bundle: str) -> None:
    document = {
        "cdiVersion": "0.5.0",
        "kind": "example.com/thing",
        "devices": [
            {
                "name": "zero",
                "containerEdits": {"deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/zero"}]},
            }
        ],
        "containerEdits": {
            "env": ["THING=1"],
            "mounts": [{"hostPath": "/etc/hosts", "containerPath": "/thing"}],
        },
    }
    host.write("/etc/cdi/thing.json", json.dumps(document))
    config = default(host, "NVIDIA_VISIBLE_DEVICES=example.com/thing=zero,nvidia.com/gpu=0")
    config["process"]["args"][-1] = (
        "cat /dev/thing | busybox head -c 2 | wc -c; echo $THING; ls /thing /dev/nvidia0"
    )
    write(host, config)
    lines = host.sh("nvc-runtime run --bundle /run/b c1").stdout.split()
    assert lines == ["2", "1", "/dev/nvidia0", "/thing"]
    write(host, default(host, "NVIDIA_VISIBLE_DEVICES=example.com/thing=one"))
    assert "example.com/thing=one: no such CDI device" in refused(host)
    write(host, default(host, "NVIDIA_VISIBLE_DEVICES=example.com/thing=zero,1"))
    assert "beside CDI devices" in refused(host)


def test_a_user_namespace(host: Host, bundle: str) -> None:
    """Runtimes make no nodes there: those of a driver in another root are left to the hook."""
    config = default(host, "NVIDIA_VISIBLE_DEVICES=1")
    config["linux"]["namespaces"].append({"type": "user"})
    config["linux"]["uidMappings"] = config["linux"]["gidMappings"] = [
        {"containerID": 0, "hostID": 100000, "size": 65536}
    ]
    write(host, config)
    done = host.sh("nvc-runtime run --bundle /run/b c1", check=False)
    assert done.stdout.startswith("GPU 0:") and "nvidia1" in done.stdout, done


def test_other_verbs_cost_nothing(host: Host, stub: None) -> None:
    """Every verb of every container passes here: one program becomes the other, and no process is started."""
    trace = host.sh("strace -f -e trace=%process -o /run/trace nvc-runtime state x; cat /run/trace").stdout
    before = trace[: trace.index(STUB)]
    assert before.count("execve(") == 2 and "fork(" not in before and "clone" not in before
