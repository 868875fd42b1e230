"""Which key of config.toml sets which field, and of what kind its value is.

NVIDIA's keys and defaults are those of its container toolkit 1.20, read from its public sources.
"""

from __future__ import annotations

CLI = "nvidia-container-cli"
RUNTIME = "nvidia-container-runtime"
HOOK = "nvidia-container-runtime-hook"

#: For each table, each key with its field of Config ("" where the key is accepted and has nothing to do here)
#: and its kind, which is a check in file.py.
KEYS: dict[str, dict[str, tuple[str, str]]] = {
    "": {
        "disable-require": ("disable_require", "bool"),
        "swarm-resource": ("swarm_resource", "names"),
        "accept-nvidia-visible-devices-envvar-when-unprivileged": ("accept_environment_unprivileged", "bool"),
        "accept-nvidia-visible-devices-as-volume-mounts": ("accept_volume_mounts", "bool"),
        "supported-driver-capabilities": ("supported_capabilities", "capabilities"),
    },
    CLI: {
        "root": ("root", "path"),
        "path": ("", "text"),
        "debug": ("cli_debug", "log"),
        "ldcache": ("ldcache", "filled"),
        "environment": ("mps_directory", "environment"),
        "load-kmods": ("load_kmods", "bool"),
        "no-pivot": ("", "bool"),
        "no-cgroups": ("no_cgroups", "bool"),
        "user": ("uid", "user"),
        "ldconfig": ("ldconfig", "text"),
    },
    "nvidia-ctk": {"path": ("cdi_hook_path", "program")},
    RUNTIME: {
        "debug": ("runtime_debug", "log"),
        "log-level": ("log_level", "text"),
        "runtimes": ("runtimes", "texts"),
        "mode": ("mode", "mode"),
    },
    f"{RUNTIME}.modes.csv": {"mount-spec-path": ("", "text"), "compat-container-root": ("", "text")},
    f"{RUNTIME}.modes.cdi": {
        "spec-dirs": ("cdi_spec_dirs", "texts"),
        "default-kind": ("cdi_default_kind", "text"),
        "annotation-prefixes": ("cdi_annotation_prefixes", "texts"),
    },
    f"{RUNTIME}.modes.jit-cdi": {
        "nvcdi-feature-flags": ("jit_feature_flags", "texts"),
        "nvcdi-disable-hooks": ("jit_disabled_hooks", "texts"),
        "load-kernel-modules": ("", "texts"),
    },
    f"{RUNTIME}.modes.legacy": {"cuda-compat-mode": ("cuda_compat_mode", "compat_mode")},
    HOOK: {"path": ("hook_path", "program"), "skip-mode-detection": ("skip_mode_detection", "bool")},
    "features": {
        "allow-cuda-compat-libs-from-container": ("", "bool"),
        "allow-ldconfig-from-container": ("", "bool"),
        "allow-unknown-oci-spec-fields": ("", "bool"),
        "disable-cuda-compat-lib-hook": ("disable_cuda_compat_lib_hook", "bool"),
        "disable-imex-channel-creation": ("disable_imex_channel_creation", "bool"),
        "ignore-imex-channel-requests": ("ignore_imex_channel_requests", "bool"),
        "no-additional-gids-for-device-nodes": ("no_additional_gids", "bool"),
    },
    "nvc": {
        "log": ("log", "log"),
        "timeout": ("timeout", "seconds"),
        "inventory": ("inventory", "bool"),
        "library-directories": ("library_directories", "paths"),
        "kinds": ("kinds", "kinds"),
        "vgpu-variables": ("vgpu_variables", "slices"),
        "vgpu-memory": ("vgpu_memory", "size"),
        "vgpu-memory-max": ("vgpu_memory_max", "size"),
        "vgpu-cores": ("vgpu_cores", "cores"),
        "vgpu-cores-max": ("vgpu_cores_max", "cores"),
        "vgpu-period": ("vgpu_period", "period"),
        "vgpu-weight": ("vgpu_weight", "weight"),
        "vgpu-weight-max": ("vgpu_weight_max", "weight"),
        "vgpu-policy": ("vgpu_policy", "policy"),
        "vgpu-isolation": ("vgpu_isolation", "isolation"),
        "vgpu-uncounted": ("vgpu_uncounted", "bool"),
        "require-nvcd": ("require_nvcd", "bool"),
        "vgpu": ("vgpu_devices", "vgpus"),
    },
    "nvcd": {
        "metrics": ("nvcd_metrics", "endpoint"),
        "web": ("nvcd_web", "address"),
        "on-bypass": ("nvcd_on_bypass", "verdict"),
        "on-excess": ("nvcd_on_excess", "verdict"),
        "on-stranger": ("nvcd_on_stranger", "stranger"),
        "swap-size": ("nvcd_swap_size", "bytes"),
    },
}
