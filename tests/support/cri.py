"""Settings of containerd and of CRI-O that tests run: a runtime of their own, and images that nobody pulls."""

from __future__ import annotations

from .cluster.images import PAUSE

#: Without a signature of anybody.
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
#: Of NRI. By default runtimes go on without a plugin after 2 s, which a busy machine may need at times.
NRI_PATIENCE = "plugin_request_timeout = '8s'"
STORAGE = """[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
"""


def containerd(runc: str, top: str = "", more: str = "") -> str:
    """config.toml of version 3 for containerd 2; `top` stands before its first table, `more` at the end."""
    return f"""version = 3
{top}[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE a lower one is refused
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE}'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{runc}'
SystemdCgroup = false
{more}"""


def crio(
    programs: dict[str, str], logs: str, shutdown: str, plugins: str, *, systemd: bool = False, api: str = "",
    runtime: str = "", image: str = "",
) -> str:  # fmt: skip
    """crio.conf. `programs` are paths of runc, conmon and pinns, `plugins` is the directory of CNI's.

    `api`, `runtime` and `image` are more lines of these tables. With `systemd`, that makes the cgroups.
    """
    manager, group = ("systemd", "system.slice") if systemd else ("cgroupfs", "pod")
    return f"""[crio]
log_dir = "{logs}"
version_file = "/run/crio/version"
clean_shutdown_file = "{shutdown}"
[crio.api]
{api}
[crio.runtime]
cgroup_manager = "{manager}"
conmon_cgroup = "{group}"
default_runtime = "runc"
pinns_path = "{programs["pinns"]}"
{runtime}
[crio.runtime.runtimes.runc]
runtime_path = "{programs["runc"]}"
runtime_root = "/run/crio/runc"
monitor_path = "{programs["conmon"]}"
monitor_cgroup = "{group}"
[crio.nri]
nri_{NRI_PATIENCE}
[crio.image]
pause_image = "{PAUSE}"
{image}
[crio.network]
plugin_dirs = ["{plugins}"]
"""
