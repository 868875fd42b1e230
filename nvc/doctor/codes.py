"""What the codes of errors mean. A code never changes its meaning; one that is no longer used is not used again."""

from __future__ import annotations

from nvc.errors import InputError
from nvc.slices.model.policy import WITHOUT_NVCD
from nvc.value import Value


class Explanation(Value):
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
        "NVC-1000", "NvcError", "nvc", "An error of no particular kind.", ("It is raised by no command.",), "",
        ("Please report it.",),
    ),
    Explanation(
        "NVC-1001", "InputError", "input",
        "The call itself is wrong: an option, a selector, a size, a variable of an image.",
        ("A value is misspelled or out of bounds; the message names it.",
         "A variable of the image, such as NVIDIA_VISIBLE_DEVICES, has a value that makes no sense."),
        "", ("Correct the value that the message names.", "`nvc-cli help COMMAND` shows what a command takes."),
    ),
    Explanation(
        "NVC-1002", "UsageError", "input", "The words of the command line do not fit the command.",
        ("A command is missing or misspelled.", "There are too many or too few arguments."),
        "", ("`nvc-cli help` lists the commands.",),
    ),
    Explanation(
        "NVC-1101", "PermissionDenied", "permission", "A right is missing.",
        ("The command was called without root.", "A seccomp filter or an outer container keeps the right back."),
        "host", ("Call it as root of the host.",),
    ),
    Explanation(
        "NVC-1102", "HostError", "host", "The host itself failed: no memory or descriptors, or a disk that fails.",
        ("A limit of the caller, such as LimitNOFILE= of a unit, is too low.", "A disk fails.",
         "A file of the installation is damaged or missing."),
        "host", ("Look into the kernel log (dmesg).", "Raise the limit.", "Install nvc again."),
    ),
    Explanation(
        "NVC-1201", "InitializationError", "initialization",
        "The driver cannot be asked, or nvc's own place on this host is not safe.",
        ("No driver is installed, or its kernel module is not loaded.",
         "The driver root of the configuration is another one.",
         "NVML does not answer in time: the persistence daemon does not run, or a GPU hangs (Xid).",
         "The kernel is older than 5.12.", "/run/nvc belongs to somebody else."),
        "driver", ("`nvc-cli doctor driver` says which of them it is, and what mends it.",),
    ),
    Explanation(
        "NVC-1301", "ContainerError", "container",
        "The container's process, namespaces, root file system or bundle are not as they should be.",
        ("The process has ended.", "Process and rootfs are not of the same container.",
         "The hook is called by something else than an OCI runtime.",
         "Another nvc works on the same rootfs, and takes longer than --timeout."),
        "host", ("Look at the engine's log for what it did before.",),
    ),
    Explanation(
        "NVC-1401", "DetectionError", "detection", "Driver files, NVML and device nodes do not agree.",
        ("The driver was upgraded, and its kernel module is still the old one.",
         "A node below /dev has the number of another device.", "The loader cache is damaged."),
        "driver nodes",
        ("Reload the module, or reboot.", "Make the nodes again: nvidia-modprobe, or `nvc-cli --load-kmods info`."),
    ),
    Explanation(
        "NVC-1402", "SourceChanged", "detection",
        "What a plan rests on changed while it was made: a file of the driver, or the policy of a device.",
        ("The driver was upgraded in this moment.", "The inventory is stale.",
         "`nvc-cli vgpu policy` ran in this moment."),
        "inventory", ("Try again.", "`nvc-cli --no-inventory info` asks the driver anew."),
    ),
    Explanation(
        "NVC-1501", "DeviceError", "device", "A selector names a device that this host does not have.",
        ("The index is higher than the number of GPUs.", "The UUID is another host's.",
         "A MIG device was made anew and has another UUID.", "A GPU has fallen off the bus."),
        "driver nodes", ("`nvc-cli info --format table` shows what --device accepts.",),
    ),
    Explanation(
        "NVC-1502", "MigConfigError", "mig-config", "The right to configure MIG cannot be given.",
        ("Only `all` is accepted.", "Single MIG devices are selected at the same time."),
        "", ("Select whole GPUs, with --mig-config=all.",),
    ),
    Explanation(
        "NVC-1503", "MigMonitorError", "mig-monitor", "The right to monitor MIG cannot be given.",
        ("Only `all` is accepted.", "Single MIG devices are selected at the same time."),
        "", ("Select whole GPUs, with --mig-monitor=all.",),
    ),
    Explanation(
        "NVC-1601", "RequirementError", "requirement", "The image demands a newer driver, or another GPU.",
        ("NVIDIA_REQUIRE_CUDA of the image names a CUDA version that this driver does not have.",
         "It names a brand or an architecture that no selected GPU is of."),
        "driver.version",
        ("Upgrade the driver, or use an older image.",
         "NVIDIA_DISABLE_REQUIRE=1 starts it all the same: with forward-compatibility libraries it may work."),
    ),
    Explanation(
        "NVC-1701", "MountError", "mount", "The container could not be given files, nodes or device rules.",
        ("In a user namespace, device rules cannot be changed.",
         "A device program of an ancestor cgroup denies the nodes.",
         "The kernel withholds device programs (kernel.kptr_restrict, net.core.bpf_jit_harden)."),
        "host",
        ("Give devices by CDI, where the engine knows the nodes beforehand.",
         "--no-cgroups, or no-cgroups = true, leaves device rules alone.",
         "The container is as it was: nothing needs to be taken back."),
    ),
    Explanation(
        "NVC-1702", "LoaderCacheError", "ldcache", "The container's loader cache cannot be read or written.",
        ("The cache of the image is damaged, or larger than is believed.",),
        "", ("Run ldconfig when the image is made.",),
    ),
    Explanation(
        "NVC-1801", "ConfigError", "configuration", "The configuration file is wrong; no container starts with it.",
        ("A key of [nvc] is unknown, or a value is of the wrong kind.", "It is not TOML.",
         "Somebody other than root could have written it."),
        "config", ("Correct what the message names; docs/configuration.md has every key.",),
    ),
    Explanation(
        "NVC-1901", "EngineError", "engine", "The configuration of a container engine cannot be read or changed.",
        ("It cannot be parsed.", "A runtime of that name is registered already, and is not ours."),
        "engines", ("Correct the file; nothing of it was changed.", "Choose another --runtime-name."),
    ),
    Explanation(
        "NVC-2001", "CdiError", "cdi", "A CDI specification cannot be read, made or written.",
        ("Its directory can be written by others than root.", "Another file of the directory has the same devices.",
         "It is neither JSON nor the YAML that specifications are written in."),
        "cdi", ("Remove the file that the message names, or write to another directory.",),
    ),
    Explanation(
        "NVC-2101", "RegistryError", "vgpu", "A slice cannot be found, made or changed.",
        ("Its entry below /run/nvc/vgpu is damaged.", "Another nvc is at work."),
        "vgpu", ("`nvc-cli vgpu ls` lists the slices.", "Remove the damaged entry, and start its container again."),
    ),
    Explanation(
        "NVC-2102", "QuotaError", "vgpu", "The quota of a slice is damaged, or a device can have none.",
        ("Something else has written to it.", "It was made by another version of nvc.",
         "The driver is older than 470 and gives MIG devices no UUID of their own."),
        "vgpu", ("Start the container again.",),
    ),
    Explanation(
        "NVC-2103", "LedgerError", "vgpu", "What the programs of a slice use is not known.",
        ("A program of the container has written to the ledger.",),
        "vgpu", ("Start the container again.",),
    ),
    Explanation(
        "NVC-2104", "CalibrationError", "vgpu", "What a context takes cannot be measured, kept or read.",
        ("The command was called without root.", "/var/lib/nvc is not there and cannot be made.",
         "/var/lib/nvc/calibration is damaged, or somebody else could have written it."),
        "vgpu.calibration", ("Call `nvc-cli vgpu calibrate` as root, on the host.",),
    ),
    Explanation(
        "NVC-2105", "RunError", "vgpu", "A program could not be started with a slice.",
        ("There is no such program, or it may not be executed.",
         "The libraries of its slice could not be put into a mount namespace of its own."),
        "vgpu", ("Try the program without `vgpu run`.", "Call it as root."),
    ),
    Explanation(
        "NVC-2106", "PolicyError", "vgpu", "A device policy cannot be read or changed.",
        ("Its file below /run/nvc is damaged, or somebody else could have written it.",),
        "vgpu", ("`nvc-cli vgpu policy GPU --reset` removes it.",),
    ),
    Explanation(
        "NVC-2107", "DaemonError", "vgpu", "A slice needs nvcd, which does not run.",
        ("`require-nvcd` is set in config.toml, and only nvcd enforces the slice's policy.",),
        "vgpu", ("Start nvcd: `systemctl start nvcd`.", f"Ask for the policy {WITHOUT_NVCD}."),
    ),
    Explanation(
        "NVC-2201", "OutputError", "output", "Standard output does not take what was to be printed.",
        ("The disk is full.", "The descriptor is not open."),
        "", ("Send the output elsewhere.",),
    ),
    Explanation(
        "NVC-2202", "ArchiveError", "archive", "The archive of `nvc-cli doctor --bundle` cannot be written.",
        ("There is a file of that name.", "The directory is not there, or may not be written."),
        "", ("Choose another name.",),
    ),
    Explanation(
        "NVC-2401", "ClaimError", "kubernetes",
        "A claim of a pod, or a device that kubelet asks for, cannot be prepared.",
        ("A parameter of the claim or of its class is misspelled or out of bounds; the message names it.",
         "The device is gone since the scheduler chose it.",
         "The cluster does not count capacity, which Kubernetes does by default from 1.36."),
        "", ("Correct what the message names, and delete the pod: its claim is allocated again.",),
    ),
    Explanation(
        "NVC-2402", "ApiError", "kubernetes",
        "The API server refuses a request of nvc-kubelet-plugin, or cannot be reached.",
        ("The API server is away or overloaded: requests are repeated.",
         "The plugin's account lacks a right: HTTP 403."),
        "", ("`kubectl get --raw /readyz` shows whether the API server is well.",
             "`kubectl auth can-i --list --as SERVICEACCOUNT` shows what the account may do."),
    ),
    Explanation(
        "NVC-2403", "CheckpointError", "kubernetes",
        "What nvc-kubelet-plugin keeps of a claim on the disk cannot be used.",
        ("The disk is full or fails.", "A newer version of the plugin has written it."),
        "", ("Make room, or remove the file that the message names once its pod is gone.",),
    ),
    Explanation(
        "NVC-9001", "InternalError", "internal", "A bug of nvc.", ("It is never the fault of the call.",), "",
        ("Please report it with the traceback, and with the archive of `nvc-cli doctor --bundle FILE`.",),
    ),
)  # fmt: skip
BY_CODE = {explanation.code: explanation for explanation in EXPLANATIONS}


def explain(code: str) -> Explanation:
    """The explanation of a code, as it is or without NVC-. Raises InputError."""
    wanted = code.strip().upper()
    if wanted.isascii() and wanted.isdigit():
        wanted = f"NVC-{wanted}"
    found = BY_CODE.get(wanted)
    if found is None:
        raise InputError("explain", code, "there is no such code", "`nvc-cli explain` lists all")
    return found


def text_of(found: Explanation) -> str:
    """For people."""
    lines = [f"{found.code}: {found.stage} error", f"  {found.meaning}", "", "Common causes"]
    lines += [f"  - {cause}" for cause in found.causes]
    if found.checks:
        lines += ["", "What looks into it", f"  nvc-cli doctor {found.checks}"]
    lines += ["", "Remedy", *(f"  - {remedy}" for remedy in found.remedies)]
    return "".join(f"{line}\n" for line in lines)


def page() -> str:
    """docs/errors.md."""
    lines = [
        "# Errors", "",
        "Every error that nvc raises on purpose has a code, printed at the end of its line with the checks of",
        "[`nvc-cli doctor`](doctor.md) that look into it. `nvc-cli explain CODE` prints what follows here.",
    ]  # fmt: skip
    for found in EXPLANATIONS:
        lines += [
            "",
            f"## {found.code}",
            "",
            f"`{found.stage} error`, class `{found.name}`. {found.meaning}",
            "",
        ]
        lines += [f"- {cause}" for cause in found.causes]
        if found.checks:
            lines += ["", f"Looked into by `nvc-cli doctor {found.checks}`."]
        lines += ["", *(f"{remedy}" for remedy in found.remedies)]
    return "".join(f"{line}\n" for line in lines)
