"""Takes the place of NVIDIA's toolkit container, as NVIDIA's GPU operator deploys that. Runs in the image, as root.

    ROOT/toolkit/VERSION/      nvc with its Python; the version before stays, for containers that are just starting
    ROOT/toolkit/nvidia-*      links to its programs, under the names that the operator and engines know
    /etc/nvc/config.toml       the settings that the operator's variables name; a node's own file is left alone

Then the engine gets the runtimes `nvidia`, `nvidia-cdi` and `nvidia-legacy`, and is restarted if that changed its
files. SIGTERM takes that back. Programs and settings stay: running containers need them to stop.

The DaemonSet has the host's process ids, so nvc's programs do this work in the host's mount namespace, under the
host's paths. Readiness is the validator's: it writes toolkit-ready when nvidia-smi works in a container.
"""

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

HOST = "/proc/1/root"
ENTER = ("/usr/bin/busybox", "nsenter", "--mount=/proc/1/ns/mnt", "--")
#: So many slashes at least follow the image's place in the paths that programs have: room for a longer place.
ROOM = 128
CONFIG = "/etc/nvc/config.toml"
MARK = "# Written by nvc's toolkit container. Change toolkit.env of the ClusterPolicy, not this file.\n"
ENGINES = ("docker", "containerd", "crio")
#: The operator names this file where nobody named another: nvc chooses its own drop-in then.
DROP_INS = ("/etc/containerd/conf.d/99-nvidia.toml", "/etc/crio/crio.conf.d/99-nvidia.conf")
SOCKETS = {"docker": "/var/run/docker.sock", "containerd": "/run/containerd/containerd.sock"}
#: What a server answers, if not to nothing: its answer has its process id.
GREETINGS = {"docker": b"GET /info HTTP/1.0\r\n\r\n", "containerd": b""}
CREDENTIALS = struct.Struct("3i")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
SECONDS = 30


class Failed(Exception):
    """A step that failed, and why."""


def say(text):
    print(f"nvc toolkit: {text}", flush=True)


def setting(*names, default=""):
    return next((os.environ[name] for name in names if os.environ.get(name)), default)


def flag(*names, default):
    """Whether a variable is true, in the words that Go takes."""
    value = setting(*names, default=str(default))
    if value.lower() not in ("1", "t", "true", "0", "f", "false"):
        raise Failed(f"{names[0]}: {value}: want true or false")
    return value.lower() in ("1", "t", "true")


class Settings:
    def __init__(self):
        self.root = setting("TOOLKIT_INSTALL_DIR", "ROOT", default="/usr/local/nvidia")
        self.toolkit = f"{self.root}/toolkit"
        self.pid_file = setting("TOOLKIT_PID_FILE", "PID_FILE", default="/run/nvidia/toolkit/toolkit.pid")
        self.engine = setting("RUNTIME", default="docker")
        if self.engine not in ENGINES:
            raise Failed(f"RUNTIME: {self.engine}: want {', '.join(ENGINES)}")
        if flag("ENABLE_NRI_PLUGIN", default=False):
            raise Failed("ENABLE_NRI_PLUGIN: nvc has no such plugin: set cdi.nriPluginEnabled to false")
        self.driver = setting("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT", default="/run/nvidia/driver")
        self.devices = setting("NVIDIA_DEV_ROOT", "DEV_ROOT", default=self.driver)
        self.cdi = flag("CDI_ENABLED", "ENABLE_CDI", default=False)
        self.cdi_directory = os.environ.get("CDI_OUTPUT_DIR", "/var/run/cdi")
        self.cdi_kind = setting("CDI_KIND", default="management.nvidia.com/gpu")
        self.nodes = not {"", "none"} & set(os.environ.get("CREATE_DEVICE_NODES", "control").split(","))
        self.configures = not flag("NO_RUNTIME_CONFIG", default=False)
        self.stays = not flag("NO_DAEMON", default=False)
        self.hook = self.engine == "crio" and setting("CRIO_CONFIG_MODE", default="config") == "hook"
        ways = ("systemd", "none") if self.engine == "crio" else ("signal", "systemd", "none")
        self.restart = setting("RUNTIME_RESTART_MODE", default=ways[0])
        if self.restart not in ways:
            raise Failed(f"RUNTIME_RESTART_MODE: {self.restart}: want {', '.join(ways)}")
        for name, path in (("ROOT", self.root), ("NVIDIA_DRIVER_ROOT", self.driver)):
            if not path.startswith("/") or not re.fullmatch(r"[!-~]+", path) or set(path) & set("'\"\\"):
                raise Failed(f"{name}: {path}: want an absolute path of plain characters")


def mounts(path):
    """Device, root and mount point of each mount that a mountinfo file lists."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            words = [re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), word) for word in line.split()[:5]]
            yield words[2], words[3], words[4]


def below(path, directory):
    """The rest of a path below a directory, None where it is not there."""
    rest = os.path.relpath(path, directory)
    return None if rest == ".." or rest.startswith("../") else rest


def host_path(directory):
    """Where the host has a directory that is mounted here."""
    own = [mount for mount in mounts("/proc/self/mountinfo") if below(directory, mount[2]) is not None]
    if own and os.path.isdir(directory):
        device, root, point = max(own, key=lambda mount: len(mount[2]))  # of two, the later lies on the other
        inner = os.path.join(root, below(directory, point))
        for there, top, place in mounts("/proc/1/mountinfo"):
            if there == device and below(inner, top) is not None:
                found = os.path.normpath(os.path.join(place, below(inner, top)))
                with contextlib.suppress(OSError):
                    if os.path.samefile(HOST + found, directory):
                        return found
    raise Failed(f"{directory}: no directory of the host is mounted there")


def check_host(settings):
    """Fail unless this is the place that the operator's DaemonSet makes."""
    try:
        alone = os.path.samefile(f"{HOST}/", "/")
    except OSError as error:
        raise Failed(f"{error.filename}: {error.strerror}: the container must be privileged") from None
    if alone:
        raise Failed("this container has process ids of its own: it needs hostPID, as the operator gives it")
    here, there = settings.root, HOST + settings.root
    if not (os.path.isdir(here) and os.path.isdir(there) and os.path.samefile(here, there)):
        raise Failed(f"{here} is not the host's: mount the host's directory of that path there")


def call(*words):
    """Run a program in the host's mount namespace; what it says."""
    done = subprocess.run(
        [*ENTER, *words], preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, set()),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()[-1:] or done.stdout.strip().splitlines()
        raise Failed(lines[0] if lines else f"{words[0]}: exit code {done.returncode}")
    return done.stdout + done.stderr


def relocate(copy, place, source):
    """Have the programs of a copy find their loader, libraries and interpreter where it will be, in `place`."""
    (program,) = glob.glob(f"{glob.escape(copy)}/lib/nvc/interpreter/bin/*")
    with open(program, "rb") as file:
        data = file.read()

    def moved(match):
        if len(place) > len(match[0]) - 1:
            raise Failed(f"{place}: longer than {len(match[0]) - 1} characters: name a shorter toolkit.installDir")
        return place.encode() + b"/" * (len(match[0]) - len(place))

    with open(program, "wb") as file:
        file.write(re.sub(re.escape(source.encode()) + b"/{%d,}" % ROOM, moved, data))
    path = f"{copy}/lib/nvc/launch.conf"
    with open(path, encoding="ascii") as file:
        text = file.read()
    with open(path, "w", encoding="ascii") as file:
        file.write(text.replace(source, place))


def install(settings, source):
    """Copy nvc to the host, and link its programs. The directory is the operator's: what is not ours goes."""
    name, toolkit = os.path.basename(source), settings.toolkit
    place = f"{toolkit}/{name}"
    before = os.path.dirname(os.path.dirname(os.path.realpath(f"{toolkit}/nvidia-ctk")))
    os.makedirs(toolkit, exist_ok=True)
    if not os.path.isdir(place):
        shutil.rmtree(f"{place}.new", ignore_errors=True)
        shutil.copytree(source, f"{place}.new", symlinks=True)
        relocate(f"{place}.new", place, source)
        os.rename(f"{place}.new", place)
    kept = {name, os.path.basename(before), ".restart"}
    for program in os.listdir(f"{place}/bin"):
        if program.startswith("nvidia-"):
            link = f"{toolkit}/{program}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{link}.new")
            os.symlink(f"{name}/bin/{program}", f"{link}.new")
            os.replace(f"{link}.new", link)
            kept.add(program)
    for other in set(os.listdir(toolkit)) - kept:
        path = f"{toolkit}/{other}"
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    say(f"{place} installed")


def config_text(settings):
    """config.toml as the variables say. A JSON text is one of TOML, too."""
    runtime, cli = "nvidia-container-runtime", "nvidia-container-cli"
    accept = "accept-nvidia-visible-devices"
    cdi = f"{runtime}.modes.cdi"
    rows = (
        ("", f"{accept}-envvar-when-unprivileged",
         flag("ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED", default=True)),
        ("", f"{accept}-as-volume-mounts", flag("ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS", default=False)),
        (cli, "root", settings.driver),
        (cli, "debug", setting("NVIDIA_CONTAINER_CLI_DEBUG")),
        *((runtime, key, setting(f"NVIDIA_CONTAINER_RUNTIME_{key.upper().replace('-', '_')}"))
          for key in ("mode", "debug", "log-level")),
        (runtime, "runtimes", setting("NVIDIA_CONTAINER_RUNTIME_RUNTIMES").split(",")),
        (cdi, "default-kind", setting("NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND")),
        (cdi, "annotation-prefixes", setting("NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES").split(",")),
        (f"{runtime}-hook", "skip-mode-detection",
         flag("NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION", default=True)),
        ("nvc", "kinds", setting("NVC_KINDS").split(",")),
    )  # fmt: skip
    text, there = MARK, ""
    for table, key, value in rows:
        if value not in ("", [""]):
            text += f"\n[{table}]\n" if table != there else ""
            text += f"{key} = {json.dumps(value)}\n"
            there = table
    return text


def write_config(settings):
    """The settings of the node, unless it has a file of its own: that must name the same driver."""
    path, cli = HOST + CONFIG, f"{settings.toolkit}/nvidia-container-cli"
    text = MARK
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        text = file.read()
    if not text.startswith(MARK):
        root = call(cli, "config", "get", "nvidia-container-cli.root").strip()
        if os.path.normpath(root) != os.path.normpath(settings.driver):
            problem = f"names the driver root {root}, the operator's is {settings.driver}"
            raise Failed(f"{CONFIG} is the node's own and {problem}: correct or remove it")
        say(f"{CONFIG} is the node's own: it holds, and not the variables of this container")
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(config_text(settings))
    try:
        call(cli, "config", "check", f"{CONFIG}.new")
    except Failed:
        os.unlink(f"{path}.new")
        raise
    os.replace(f"{path}.new", path)
    say(f"{CONFIG} written")


def write_specification(settings):
    """Device nodes that programs for managing GPUs may need, and the specification that gives them all."""
    ctk, vendor, name = f"{settings.toolkit}/nvidia-ctk", *settings.cdi_kind.partition("/")[::2]
    roots = [f"--driver-root={settings.driver}", f"--dev-root={settings.devices}"]
    if settings.nodes:
        call(ctk, "system", "create-device-nodes", "--control-devices", *roots)
    path = f"{settings.cdi_directory}/{vendor}-{name}.yaml"
    call(ctk, "cdi", "generate", "--mode=management", *roots, f"--vendor={vendor}", f"--class={name}",
         f"--nvidia-cdi-hook-path={settings.toolkit}/nvidia-cdi-hook", f"--output={path}")  # fmt: skip
    say(f"{path} written")


def engine_files(settings):
    """The engine's files as options of nvidia-ctk, and of `nvc-cli runtime configure`."""
    if settings.hook:
        hooks = host_path(setting("CRIO_HOOKS_DIR", default="/usr/share/containers/oci/hooks.d"))
        return [], [f"--hook-dir={hooks}"]
    theirs, ours = [], []
    path = setting("RUNTIME_CONFIG", f"{settings.engine.upper()}_CONFIG")
    if path and settings.engine != "crio":  # whose drop-in alone is written
        path = f"--config={host_path(os.path.dirname(path))}/{os.path.basename(path)}"
        theirs, ours = [path], [path]
    drop_in = setting("RUNTIME_DROP_IN_CONFIG_HOST_PATH")
    if drop_in and settings.engine != "docker" and drop_in not in DROP_INS:
        theirs.append(f"--drop-in-config={drop_in}")
        ours.append(f"--drop-in={drop_in}" if settings.engine == "containerd" else f"--config={drop_in}")
    return theirs, ours


def configure(settings):
    """Register the runtimes; whether files have changed."""
    files, ours = engine_files(settings)
    if settings.hook:
        call(f"{settings.toolkit}/nvidia-container-cli", "runtime", "configure", "--engine=crio", *ours)
        say("crio has the hook")
        return False  # CRI-O sees it by itself
    name = setting("NVIDIA_RUNTIME_NAME", "CONTAINERD_RUNTIME_CLASS", "DOCKER_RUNTIME_NAME", default="nvidia")
    defaults = [f"{engine}_SET_AS_DEFAULT" for engine in ("NVIDIA_RUNTIME", "CONTAINERD", "DOCKER")]
    default = flag(*defaults, default=True)
    cdi = ["--cdi.enabled"] if flag("RUNTIME_ENABLE_CDI", default=settings.cdi) else []
    modes = {"nvidia-cdi": ".cdi", "nvidia-legacy": ".legacy"}
    said = ""
    for runtime, suffix in {name if name not in modes else "nvidia": "", **modes}.items():
        more = ["--set-as-default"] if default and runtime == name else []
        path = f"{settings.toolkit}/nvidia-container-runtime{suffix}"
        words = [f"--runtime={settings.engine}", f"--runtime-name={runtime}", f"--runtime-path={path}", *files]
        said += call(f"{settings.toolkit}/nvidia-ctk", "runtime", "configure", *words, *cdi, *more)
    changed = ": wrote /" in said
    say(f"{settings.engine} has the runtime {name}{': its files were so before' if not changed else ''}")
    return changed


def unconfigure(settings):
    """Take the runtimes out of the engine's files; whether these have changed."""
    words = [f"--engine={settings.engine}", *engine_files(settings)[1], "--remove"]
    said = call(f"{settings.toolkit}/nvidia-container-cli", "runtime", "configure", *words)
    left = re.findall("^nvidia-container-cli: warning: (.*)", said, re.MULTILINE)
    say("; ".join((f"{settings.engine}: runtimes removed", *left)))
    return not settings.hook and re.search(r"^(wrote|removed) /", said, re.MULTILINE) is not None


def server(engine):
    """The process id of the daemon behind the engine's socket, which systemd may have made."""
    path = setting("RUNTIME_SOCKET", f"{engine.upper()}_SOCKET", default=SOCKETS[engine])
    why = "it shows no process"
    for _ in range(SECONDS):
        try:
            if (pid := sender(path, GREETINGS[engine])) > 1:
                return pid
        except OSError as error:
            why = error
        time.sleep(1)  # it may just have been restarted
    raise Failed(f"signal {engine} by {path}: {why}: set RUNTIME_RESTART_MODE to systemd")


def sender(path, greeting):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        client.connect(path)
        client.sendall(greeting)
        _, messages, _, _ = client.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
    return next((CREDENTIALS.unpack(data)[0] for *_, data in messages), 0)


def restart(settings):
    if settings.restart == "systemd":
        call("systemctl", "restart", settings.engine)
    elif settings.restart == "signal":
        os.kill(server(settings.engine), signal.SIGHUP)
    say(f"{settings.engine}: files changed, restarted by: {settings.restart}")


def apply(settings, change):
    """Change the engine's files, and restart it if that did; also for one that was cut short in between."""
    mark = f"{settings.toolkit}/.restart"
    pending = os.path.exists(mark)
    with open(mark, "w", encoding="ascii"):
        pass
    if change(settings) or pending:
        restart(settings)
    os.unlink(mark)


@contextlib.contextmanager
def only_one(path):
    """Be the only one on this node: two pods would take back each other's changes."""
    if os.path.basename(path) != "toolkit.pid":
        raise Failed(f"TOOLKIT_PID_FILE: {path}: want a file called toolkit.pid")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(f"{path}: another toolkit container runs on this node") from None
        try:
            file.truncate(0)
            print(os.getpid(), file=file, flush=True)
            yield
        finally:
            os.unlink(path)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.umask(0o022)
    try:
        settings = Settings()
        with only_one(settings.pid_file):
            check_host(settings)
            install(settings, os.path.realpath(__file__).removesuffix("/lib/nvc/toolkit"))
            write_config(settings)
            if settings.cdi and settings.cdi_directory:
                write_specification(settings)
            if settings.configures:
                apply(settings, configure)
            if settings.stays:
                say("ready")
                say(f"{signal.Signals(signal.sigwait(SIGNALS)).name} received")
                if settings.configures:
                    apply(settings, unconfigure)
    except (Failed, OSError) as error:
        sys.exit(f"nvc toolkit: {error}")


if __name__ == "__main__":
    main()
