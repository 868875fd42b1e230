"""`nvc-kubelet-plugin`: GPUs and slices of them for the pods of a node, in the foreground."""

from __future__ import annotations

import os
from typing import NoReturn

from nvc.base.errors import InputError
from nvc.kubernetes.plugin.settings import Settings
from nvc_cli.boot import configuration
from nvc_cli.resident import stay

USAGE = """Usage: nvc-kubelet-plugin --node-name NAME [options]

Publishes the GPUs of a Kubernetes node, and prepares them for pods: whole, as
MIG devices, or as slices with limits of memory and time. Runs in the foreground,
as root; SIGTERM ends it, and pods keep what they have. See docs/kubernetes.md.

  --node-name NAME       this node's name in the cluster
  --kubeconfig FILE      how to reach the API server; default: the pod's account
  --instance NAME        UID of this pod; two plugins of one node, as during an
                         update, need different ones
  --mode LIST            dra, device-plugin, or both; default: dra where the API
                         server has resource.k8s.io/v1, else device-plugin
  --driver-name NAME     default: gpu.nvc.dev
  --root DIR             driver root; default: as configured
  --config FILE          settings; default: the first of /etc/nvc/config.toml and
                         /etc/nvidia-container-runtime/config.toml
  --cdi-dir DIR          default: /var/run/cdi
  --hook-path FILE       nvc-cdi-hook as the container runtime finds it; default:
                         beside this program
  --state-dir DIR        default: /var/lib/nvc/kubernetes
  --kubelet-plugins-dir DIR
                         default: /var/lib/kubelet/plugins
  --registry-dir DIR     default: /var/lib/kubelet/plugins_registry
  --device-plugin-dir DIR
                         default: /var/lib/kubelet/device-plugins
  --placement NAME       packed or distributed: which GPU the device plugin takes for
                         a slice; default: packed, so that others stay whole
  --health-quiet SECONDS a GPU is healthy again after SECONDS without an Xid,
                         an error number of the driver; default: 300
  --health-interval SECONDS
                         time between two checks of all GPUs; default: 10
  --metrics-listen ADDR:PORT
                         serve metrics for Prometheus
  --dcgm-metrics         with --metrics-listen: metrics of GPUs too, named as by
                         dcgm-exporter
  --version              print the version
  -h, --help             print this
"""

PATHS = (
    "kubeconfig", "root", "config", "cdi-dir", "hook-path", "state-dir", "kubelet-plugins-dir", "registry-dir",
    "device-plugin-dir",
)  # fmt: skip
#: With the most digits before the point.
SECONDS = {"health-quiet": 6, "health-interval": 2}
DEFAULTS = {"health-quiet": "300", "health-interval": "10"}
#: Of a process that the plugin starts itself.
WORKER = "worker"
OPTIONS = ("node-name", "instance", WORKER, "mode", "driver-name", "metrics-listen", "placement", *SECONDS, *PATHS)
NAME_MAX, DRIVER_MAX = 253, 63
_IN_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")


def main(program: str = "nvc-kubelet-plugin") -> NoReturn:
    """Run until a signal ends it; the exit code is 0 then."""
    stay(program, USAGE, (OPTIONS, PATHS, ("dcgm-metrics",)), _run, "gRPC (grpcio and protobuf)")


def _run(values: dict[str, str]) -> int:
    settings = settings_of(values)
    config = configuration(values.get("config", ""), values.get("root", ""))
    if "worker" not in values:
        from nvc.kubernetes.plugin.front import Front

        return Front(settings.places, settings.state_dir).run()
    from nvc.kubernetes.main import run

    run(settings, config, dict(os.environ))
    return 0


def settings_of(values: dict[str, str]) -> Settings:
    """The settings of the plugin. Raises InputError for names and modes that cannot be."""
    from nvc.kubernetes.plugin.settings import MODES, PLACEMENTS, Settings

    for name, most in (("node-name", NAME_MAX), ("driver-name", DRIVER_MAX), ("instance", DRIVER_MAX)):
        value = values.get(name)
        if name == "node-name" and not value:
            hint = "name the node as `kubectl get nodes` shows it"
            raise InputError("--node-name", cause="is missing", hint=hint)
        sound = (
            value is None or 0 < len(value) <= most and _IN_NAME.issuperset(value) and value[0] not in ".-"
        )
        if not sound:
            raise InputError(f"--{name}", str(value), f"want a DNS name of at most {most} characters")
    modes = tuple(dict.fromkeys(filter(None, values.get("mode", "").split(","))))
    if not set(modes) <= set(MODES):
        raise InputError("--mode", values["mode"], f"want {' or '.join(MODES)}, or both")
    if values.get("placement", PLACEMENTS[0]) not in PLACEMENTS:
        raise InputError("--placement", values["placement"], f"want {' or '.join(PLACEMENTS)}")
    listen = values.get("metrics-listen", "")
    if listen and not (listen.rpartition(":")[0] and listen.rpartition(":")[2].isdigit()):
        raise InputError("--metrics-listen", listen, "want ADDR:PORT")
    apart = ("root", "config", "mode", "dcgm-metrics", WORKER, *SECONDS)
    front, _, ready = values.get(WORKER, "0,-1").partition(",")
    known = {name.replace("-", "_"): value for name, value in values.items() if name not in apart}
    return Settings(
        **known,
        mode=modes,
        front=int(front),
        ready=int(ready),
        dcgm_metrics="dcgm-metrics" in values,
        health_quiet=_seconds(values, "health-quiet"),
        health_interval=_seconds(values, "health-interval"),
    )


def _seconds(values: dict[str, str], name: str) -> float:
    """An option's number of seconds above 0, or its default. Raises InputError."""
    text = values.get(name, DEFAULTS[name])
    whole, _, part = text.partition(".")
    digits = whole + part
    if not (digits.isascii() and digits.isdigit() and len(part) <= 3 and 0 < len(whole) <= SECONDS[name]):
        raise InputError(f"--{name}", text, "want a number of seconds")
    if float(text) <= 0:
        raise InputError(f"--{name}", text, "want more than 0 seconds")
    return float(text)
