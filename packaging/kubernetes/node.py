"""Puts nvc on a Kubernetes node, and takes it away again. Runs in the image, with the node's directories in /host.

node install       copies /opt/nvc/VERSION to the node and makes it the current version; removes versions not in use
node uninstall     removes nvc and what its plugin keeps on the node; then waits until it is stopped, so that a
                   DaemonSet stays Ready. Refuses while a claim is prepared.
node serves        succeeds while the plugin of this pod answers on a socket that the kubelet knows: its probes
node removed       succeeds once `uninstall` has removed everything: the readiness probe

A version is in use while a file in /etc/cdi, /var/run/cdi or the plugin's state names it: a runtime reads those
when it restarts a container. Versions appear and disappear by a rename. An installation of nvc on the host, in
/usr or /usr/local, is left alone, and so are slices that live.
"""

import argparse
import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import sys

OPT = "opt/nvc"
CDI = ("etc/cdi", "run/cdi")
STATE = "var/lib/nvc/kubernetes"
RUN = "run/nvc"
VENDOR = "k8s.gpu.nvc.dev"
#: Kinds of the documents of claims: of whole devices, and of slices.
CLAIMS = (f"{VENDOR}/claim", f"{VENDOR}/slice")
KUBELET = "var/lib/kubelet"
#: What the plugin leaves there; {} is the driver.
SOCKETS = ("plugins/{}", "plugins_registry/{}*", "device-plugins/nvc*", "device-plugins/{}*")
REMOVED = "/tmp/removed"
NVCD = "run/nvc/nvcd/nvcd.sock"
#: Where a package or `make install` puts nvc.
OWN = ("usr/lib/nvc", "usr/local/lib/nvc")


class Failed(Exception):
    """A step that failed, and why."""


def say(text):
    print(f"nvc node: {text}", flush=True)


@contextlib.contextmanager
def alone(place):
    """Nobody else changes the installation meanwhile: pods of two versions can be on a node at once."""
    os.makedirs(place, mode=0o755, exist_ok=True)
    with open(os.path.join(place, ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def versions(place):
    return sorted(entry.name for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False))


def texts(host):
    """The content of every file that may name a version. A file that cannot be read is an error."""
    for directory in (*CDI, STATE):
        for path, _, files in os.walk(os.path.join(host, directory)):
            for each in (os.path.join(path, name) for name in files):
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISSOCK(os.stat(each).st_mode):  # of a plugin that runs
                        continue
                    with open(each, "rb") as file:
                        yield file.read()


def unused(host, place, current):
    named = b"\0".join(texts(host))
    return [name for name in versions(place) if name != current and f"/{OPT}/{name}/".encode() not in named]


def remove(path):
    """Remove a version: first its name, so that nobody finds a part of it."""
    gone = f"{path}.gone"
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone)


def install(host, source):
    name, place = os.path.basename(source), os.path.join(host, OPT)
    with alone(place):
        for left in glob.glob(os.path.join(glob.escape(place), "*.new")):
            shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)
        target = os.path.join(place, name)
        if os.path.isdir(target):
            say(f"/{OPT}/{name} is there")
        else:
            shutil.copytree(source, target + ".new", symlinks=True)
            os.rename(target + ".new", target)
            say(f"/{OPT}/{name} installed")
        link = os.path.join(place, "current")
        os.symlink(name, link + ".new")
        os.replace(link + ".new", link)
        for old in unused(host, place, name):
            remove(os.path.join(place, old))
            say(f"/{OPT}/{old} removed")


def specifications(host):
    for directory in CDI:
        for path in sorted(glob.glob(os.path.join(glob.escape(os.path.join(host, directory)), "*.json"))):
            try:
                with open(path, encoding="utf-8") as file:
                    document = json.load(file)
            except (ValueError, OSError) as error:
                raise Failed(f"{path.removeprefix(host)}: {error}: remove it if it is nobody's") from None
            if isinstance(document, dict) and str(document.get("kind", "")).split("/")[0] == VENDOR:
                yield path, str(document["kind"])


def answers(path):
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return False
    return True


def serves(kubelet, driver, instance):
    """Whether the plugin of this pod answers, or one has the device plugin, which this one will serve after it."""
    own = hashlib.sha256(instance.encode()).hexdigest()[:8]
    paths = glob.glob(os.path.join(glob.escape(kubelet), "device-plugins/nvc*.sock"))
    return any(map(answers, [os.path.join(kubelet, "plugins", driver, f"dra-{own}.sock"), *paths]))


def sockets(kubelet, driver):
    for pattern in SOCKETS:
        yield from glob.glob(os.path.join(glob.escape(kubelet), pattern.format(driver)))


def is_used(run):
    """Whether a process of the node has the quota of a slice among its mounts: another nvc has made it."""
    keys = [f"/nvc/vgpu/{name}/".encode() for name in os.listdir(run)] if os.path.isdir(run) else []
    for path in glob.glob("/proc/[0-9]*/mountinfo") if keys else ():
        try:
            with open(path, "rb") as mounts:
                if any(key in line.split()[3] for line in mounts for key in keys):
                    return True
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH, errno.EINVAL):  # it has ended
                raise
    return False


def uninstall(host, driver):
    found = list(specifications(host))
    claims = [path.removeprefix(host) for path, kind in found if kind in CLAIMS]
    if claims:
        raise Failed(f"claims are prepared on this node ({', '.join(claims)}): delete the pods that use them")
    place = os.path.join(host, OPT)
    paths = [path for path, _ in found] + [os.path.join(host, STATE)]
    paths += sockets(os.path.join(host, KUBELET), driver)
    run = os.path.join(host, RUN)
    own = any(os.path.isdir(os.path.join(host, name)) for name in OWN) or answers(os.path.join(host, NVCD))
    if not own and not is_used(os.path.join(run, "vgpu")):
        paths += glob.glob(os.path.join(glob.escape(run), "*"))
    with alone(place):
        paths += [os.path.join(place, name) for name in os.listdir(place) if name != ".lock"]
        for path in paths:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
    os.unlink(os.path.join(place, ".lock"))
    say("removed from this node")


def wait_for_the_end():
    """A DaemonSet's container must not end by itself."""
    numbers = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    with open(REMOVED, "w", encoding="ascii"):
        pass
    signal.sigwait(numbers)


def main():
    parser = argparse.ArgumentParser(prog="node", description=__doc__.split("\n\n")[0])
    parser.add_argument("call", choices=("install", "serves", "uninstall", "removed"))
    parser.add_argument("--host", default="/host", help="where the node's directories are")
    parser.add_argument("--driver-name", default="gpu.nvc.dev")
    parser.add_argument("--kubelet-dir", default=f"/{KUBELET}")
    parser.add_argument("--once", action="store_true", help="end when all is removed")
    options = parser.parse_args()
    if options.call == "serves":
        sys.exit(not serves(options.kubelet_dir, options.driver_name, os.environ.get("NVC_POD_UID", "")))
    if options.call == "removed":
        sys.exit(not os.path.exists(REMOVED))
    os.umask(0o022)
    try:
        if options.call == "install":
            here = os.path.realpath(__file__)
            install(options.host, here.removesuffix("/lib/nvc/node"))
            return
        uninstall(options.host, options.driver_name)
    except (Failed, OSError) as error:
        sys.exit(f"nvc node: {options.call}: {error}")
    if not options.once:
        wait_for_the_end()


if __name__ == "__main__":
    main()
