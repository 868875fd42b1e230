"""What the command line says."""

from __future__ import annotations

from nvc.base.value import Value
from nvc.kubernetes.names import DRIVER
from nvc.kubernetes.plugin.sockets import Places, places_of

DRA, DEVICE_PLUGIN = "dra", "device-plugin"
MODES = (DRA, DEVICE_PLUGIN)
PLACEMENTS = ("packed", "distributed")


class Settings(Value):
    """Every option; paths are absolute."""

    node_name: str
    health_quiet: float  # seconds without an Xid after which a GPU is well again
    health_interval: float  # seconds from one look at all GPUs to the next
    instance: str = ""  # tells plugins of one node apart, such as the UID of the pod
    front: int = 0  # of a worker: its parent, and the descriptor to write to when it serves claims
    ready: int = -1
    kubeconfig: str = ""  # "": the account of the pod
    driver_name: str = DRIVER
    kubelet_plugins_dir: str = "/var/lib/kubelet/plugins"
    registry_dir: str = "/var/lib/kubelet/plugins_registry"
    device_plugin_dir: str = "/var/lib/kubelet/device-plugins"
    cdi_dir: str = "/var/run/cdi"
    state_dir: str = "/var/lib/nvc/kubernetes"
    metrics_listen: str = ""  # ADDR:PORT; "": nowhere
    mode: tuple[str, ...] = ()  # of MODES; (): DRA where the API server has it, else the device plugin
    hook_path: str = ""  # "": beside this program
    dcgm_metrics: bool = False
    placement: str = "packed"  # of slices of the device plugin; or distributed

    @property
    def places(self) -> Places:
        return places_of(
            self.driver_name, self.kubelet_plugins_dir, self.registry_dir, self.state_dir, self.instance
        )
