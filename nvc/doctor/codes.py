"""What the codes of errors mean. A code never changes its meaning; one that is no longer used is not used again."""

from __future__ import annotations

from dataclasses import dataclass

from nvc.errors import InputError
from nvc.slices.model.policy import WITHOUT_NVCD


@dataclass(frozen=True)
class Explanation:
    """What is known of one code."""

    code: str
    name: str  # of the class
    stage: str  # first word of the message
    meaning: str
    causes: tuple[str, ...]
    checks: str  # arguments of `nvc-cli doctor`, "" where no check looks into it
    remedies: tuple[str, ...]


EXPLANATIONS = (
    Explanation(
        "NVC-1000", "NvcError", "nvc", "An error of no specific kind.", ("No command raises it.",), "",
        ("Please report it.",),
    ),
    Explanation(
        "NVC-1001", "InputError", "input",
        "The request is wrong: an option, a device, a size, or a variable of an image.",
        ("A value is misspelled or out of range; the message names it.",
         "A variable of the image, such as NVIDIA_VISIBLE_DEVICES, has an invalid value."),
        "", ("Correct the value that the message names.", "`nvc-cli help COMMAND` shows what a command takes."),
    ),
    Explanation(
        "NVC-1002", "UsageError", "input", "The command line is incomplete or misspelled.",
        ("A command is missing or misspelled.", "There are too many or too few arguments."),
        "", ("`nvc-cli help` lists the commands.",),
    ),
    Explanation(
        "NVC-1101", "PermissionDenied", "permission", "A privilege is missing.",
        ("The command was run without root.", "A seccomp filter or an outer container withholds the privilege."),
        "host", ("Run it as root on the host.",),
    ),
    Explanation(
        "NVC-1102", "HostError", "host", "The host failed: out of memory or file descriptors, or a disk error.",
        ("A limit of the caller is too low, such as LimitNOFILE= of a unit.", "A disk fails.",
         "A file of the installation is damaged or missing.",
         "A process holds a lease on a driver file (F_SETLEASE), as root of a container can without nvcd."),
        "host", ("Check the kernel log (dmesg).", "Raise the limit.", "Reinstall nvc.",
                 "End the process that the message names, and run nvcd."),
    ),
    Explanation(
        "NVC-1201", "InitializationError", "initialization",
        "The driver cannot be queried, or nvc's directories on this host are not safe.",
        ("No driver is installed, or its kernel module is not loaded.",
         "The configuration names the wrong driver root.",
         "NVML does not answer in time, because the persistence daemon does not run or a GPU hangs (Xid).",
         "NVML does not answer in time, because a process holds a lease on its library (`LEASE` in /proc/locks).",
         "The kernel is older than 5.12.", "/run/nvc does not belong to root."),
        "driver", ("`nvc-cli doctor driver` finds the cause and the remedy.",),
    ),
    Explanation(
        "NVC-1211", "TracerError", "initialization",
        "nvcd cannot see from outside what processes make of the driver, so the shim keeps time.",
        ("nvcd lacks CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN or CAP_SYS_PTRACE, or is not in the host's pid namespace.",
         "The kernel is in lockdown, or has no BPF.", "No file system bpf can be mounted below /run/nvc."),
        "vgpu", ("Run nvcd by its unit, on the host.", "Give it the right that the message names."),
    ),
    Explanation(
        "NVC-1212", "RmError", "initialization",
        "The driver's resource manager refuses a call, so the shim keeps time.",
        ("The driver is of a version whose calls are others.", "The GPU is lost or is being reset.",
         "nvcd lacks CAP_SYS_ADMIN or CAP_SYS_PTRACE."),
        "driver", ("Check the kernel log (dmesg).", "Give nvcd the right that the message names."),
    ),
    Explanation(
        "NVC-1301", "ContainerError", "container",
        "The container's process, namespaces, root file system or bundle are not usable.",
        ("The process has ended.", "Process and root file system do not belong to the same container.",
         "Something other than an OCI runtime called the hook.",
         "gVisor called a hook that is not named nvidia-container-runtime-hook.",
         "Another nvc works on the same root file system for longer than --timeout."),
        "host", ("Check the engine's log for earlier errors.",),
    ),
    Explanation(
        "NVC-1401", "DetectionError", "detection", "Driver files, NVML and device nodes do not agree.",
        ("The driver was upgraded, but the old kernel module is loaded.",
         "A device node has the number of another device.", "The loader cache is damaged."),
        "driver nodes",
        ("Reload the module, or reboot.", "Create the nodes: nvidia-modprobe, or `nvc-cli --load-kmods info`."),
    ),
    Explanation(
        "NVC-1402", "SourceChanged", "detection",
        "A driver file or a device policy changed while the plan was made.",
        ("The driver was upgraded at that moment.", "The inventory is stale.",
         "`nvc-cli vgpu policy` ran at that moment."),
        "driver nodes", ("Try again.", "`nvc-cli --no-inventory info` asks the driver instead of the inventory."),
    ),
    Explanation(
        "NVC-1501", "DeviceError", "device", "The requested device does not exist on this host.",
        ("The index is higher than the number of GPUs.", "The UUID belongs to another host.",
         "A MIG device was recreated and has a new UUID.", "A GPU fell off the bus."),
        "driver nodes", ("`nvc-cli info --format table` lists what --device accepts.",),
    ),
    Explanation(
        "NVC-1502", "MigConfigError", "mig-config", "The right to configure MIG cannot be given.",
        ("Only `all` is accepted.", "Single MIG devices are selected at the same time."),
        "", ("Select whole GPUs together with --mig-config=all.",),
    ),
    Explanation(
        "NVC-1503", "MigMonitorError", "mig-monitor", "The right to monitor MIG cannot be given.",
        ("Only `all` is accepted.", "Single MIG devices are selected at the same time."),
        "", ("Select whole GPUs together with --mig-monitor=all.",),
    ),
    Explanation(
        "NVC-1601", "RequirementError", "requirement", "The image requires a newer driver, or another GPU.",
        ("NVIDIA_REQUIRE_CUDA of the image names a CUDA version that this driver does not support.",
         "It names a brand or an architecture that a selected GPU does not have."),
        "driver.version",
        ("Upgrade the driver, or use an older image.",
         "NVIDIA_DISABLE_REQUIRE=1 skips the check. With forward-compatibility libraries, the image may work."),
    ),
    Explanation(
        "NVC-1701", "MountError", "mount", "Files, device nodes or device rules could not be added.",
        ("In a user namespace, device rules cannot be changed.",
         "A device program of an ancestor cgroup denies the device nodes.",
         "The kernel hides device programs (kernel.kptr_restrict, net.core.bpf_jit_harden)."),
        "host",
        ("Give devices by CDI: the engine then knows the device nodes.",
         "Use --no-cgroups, or no-cgroups = true, to leave device rules unchanged.",
         "The container is unchanged: you need not undo anything."),
    ),
    Explanation(
        "NVC-1702", "LoaderCacheError", "ldcache", "The container's loader cache cannot be read or written.",
        ("The image's loader cache is damaged, or too large.",),
        "", ("Run ldconfig when you build the image.",),
    ),
    Explanation(
        "NVC-1801", "ConfigError", "configuration", "The configuration file is wrong, so no container starts.",
        ("A key of [nvc] is unknown, or a value has the wrong type.", "It is not TOML.",
         "Others than root can write it."),
        "config", ("Correct what the message names; docs/configuration.md describes every key.",),
    ),
    Explanation(
        "NVC-1901", "EngineError", "engine", "The configuration of a container engine cannot be read or changed.",
        ("It cannot be parsed.", "A runtime of that name is registered already, and it is not nvc's."),
        "engines", ("Correct the file; nvc did not change it.", "Choose another --runtime-name."),
    ),
    Explanation(
        "NVC-2001", "CdiError", "cdi", "A CDI specification cannot be read, made or written.",
        ("Others than root can write its directory.", "Another file in the directory defines the same devices.",
         "It is neither JSON nor valid YAML."),
        "cdi", ("Remove the file that the message names, or write to another directory.",),
    ),
    Explanation(
        "NVC-2101", "RegistryError", "vgpu", "A slice cannot be found, made or changed.",
        ("Its entry below /run/nvc/vgpu is damaged.", "Another nvc holds the lock."),
        "vgpu", ("`nvc-cli vgpu ls` lists the slices.", "Remove the damaged entry, and start its container again."),
    ),
    Explanation(
        "NVC-2102", "QuotaError", "vgpu", "The quota of a slice is damaged, or a device cannot have a quota.",
        ("Something else wrote to it.", "Another version of nvc created it.",
         "The driver is older than 470 and gives MIG devices no UUID of their own."),
        "vgpu", ("Start the container again.",),
    ),
    Explanation(
        "NVC-2103", "LedgerError", "vgpu", "The use of a slice is unknown.",
        ("A program of the container damaged the ledger.",),
        "vgpu", ("Start the container again.",),
    ),
    Explanation(
        "NVC-2104", "CalibrationError", "vgpu", "Calibration failed, or its result cannot be read.",
        ("The command was run without root.", "/var/lib/nvc cannot be created.",
         "/var/lib/nvc/calibration is damaged, or others than root can write it."),
        "vgpu.calibration", ("Run `nvc-cli vgpu calibrate` as root, on the host.",),
    ),
    Explanation(
        "NVC-2105", "RunError", "vgpu", "A program could not be started with a slice.",
        ("The program does not exist, or is not executable.",
         "The shim could not be mounted in a new mount namespace."),
        "vgpu", ("Try the program without `vgpu run`.", "Run the command as root."),
    ),
    Explanation(
        "NVC-2106", "PolicyError", "vgpu", "A device policy cannot be read or changed.",
        ("Its file below /run/nvc is damaged, or others than root can write it.",),
        "vgpu", ("`nvc-cli vgpu policy GPU --reset` removes it.",),
    ),
    Explanation(
        "NVC-2107", "DaemonError", "vgpu", "The slice's policy needs nvcd, but nvcd does not run.",
        ("`require-nvcd` is set in config.toml, and only nvcd enforces the slice's policy.",),
        "vgpu", ("Start nvcd: `systemctl start nvcd`.", f"Ask for the policy {WITHOUT_NVCD}."),
    ),
    Explanation(
        "NVC-2201", "OutputError", "output", "Standard output cannot be written.",
        ("The disk is full.", "The descriptor is not open."),
        "", ("Redirect the output.",),
    ),
    Explanation(
        "NVC-2202", "ArchiveError", "archive", "The archive of `nvc-cli doctor --bundle` cannot be written.",
        ("A file of that name exists.", "The directory does not exist or is not writable."),
        "", ("Choose another name.",),
    ),
    Explanation(
        "NVC-2401", "ClaimError", "kubernetes",
        "A claim of a pod, or a device that the kubelet requests, cannot be prepared.",
        ("A parameter of the claim or of its class is misspelled or out of range; the message names it.",
         "The device disappeared after the scheduler chose it.",
         "The cluster does not count capacity. Kubernetes does so by default from 1.36."),
        "", ("Correct what the message names, then delete the pod: its claim is allocated again.",),
    ),
    Explanation(
        "NVC-2402", "ApiError", "kubernetes",
        "The API server refuses a request of nvc-kubelet-plugin, or is unreachable.",
        ("The API server is down or overloaded; the plugin retries.",
         "The plugin's service account lacks a permission (HTTP 403)."),
        "", ("`kubectl get --raw /readyz` shows whether the API server is healthy.",
             "`kubectl auth can-i --list --as SERVICEACCOUNT` shows what the account may do."),
    ),
    Explanation(
        "NVC-2403", "CheckpointError", "kubernetes",
        "The plugin's record of a claim on disk is unusable.",
        ("The disk is full or fails.", "A newer version of the plugin wrote it."),
        "", ("Free disk space. Or remove the file that the message names, after its pod has ended.",),
    ),
    Explanation(
        "NVC-2501", "NriError", "nri",
        "nvc-nri cannot reach the runtime's NRI socket, or the connection has ended.",
        ("The runtime does not run, has NRI disabled, or uses another socket.",
         "The runtime stopped, or disconnected the plugin because it did not answer in 2 s."),
        "", ("Enable NRI in the runtime, and name its socket with --socket.", "Read the runtime's log."),
    ),
    Explanation(
        "NVC-9001", "InternalError", "internal", "A bug in nvc.", ("The request does not cause it.",), "",
        ("Please report it with the traceback, and with the archive of `nvc-cli doctor --bundle FILE`.",),
    ),
)  # fmt: skip
BY_CODE = {explanation.code: explanation for explanation in EXPLANATIONS}


def explain(code: str) -> Explanation:
    """The explanation of a code, as it is or without NVC-. Raises InputError."""
    wanted = code.strip().upper()
    found = BY_CODE.get(wanted) or BY_CODE.get(f"NVC-{wanted}")
    if found is None:
        raise InputError("explain", code, "there is no such code", "`nvc-cli explain` lists all")
    return found


def text_of(found: Explanation) -> str:
    """For people."""
    lines = [f"{found.code}: {found.stage} error", f"  {found.meaning}", "", "Common causes"]
    lines += [f"  - {cause}" for cause in found.causes]
    if found.checks:
        lines += ["", "Check", f"  nvc-cli doctor {found.checks}"]
    lines += ["", "Remedy", *(f"  - {remedy}" for remedy in found.remedies)]
    return "".join(f"{line}\n" for line in lines)


def page() -> str:
    """docs/errors.md."""
    lines = [
        "# Errors", "",
        "Each error of nvc has a code. The code is at the end of the error's line, with the checks of",
        "[`nvc-cli doctor`](doctor.md) that help to find its cause. `nvc-cli explain CODE` prints these entries.",
    ]  # fmt: skip
    for found in EXPLANATIONS:
        lines += ["", f"## {found.code}", ""]
        lines += [f"`{found.stage} error`, class `{found.name}`. {found.meaning}", ""]
        lines += [f"- {cause}" for cause in found.causes]
        lines += ["", f"Check with `nvc-cli doctor {found.checks}`."] if found.checks else []
        lines += ["", *found.remedies]
    return "".join(f"{line}\n" for line in lines)
