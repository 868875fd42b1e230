"""Containers and programs that try to have more rights: the tests that have them, each beside what it is about."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .rootfs import LIBS


@dataclass(frozen=True)
class Right:
    name: str
    tries: str
    holds: str
    test: str  # the file below tests/, and the function


RIGHTS = (
    # The container's files while it starts.
    Right(
        "links of the image",
        "directories and files of the image are links that lead to the host's",
        "nothing outside the rootfs changes",
        "kernel/test_apply_hostile.py::test_links_out_of_the_root_stay_inside",
    ),
    Right(
        "a racing link",
        "the library directory is exchanged for a link while mounts are made",
        "nothing outside the rootfs changes",
        "kernel/test_apply_hostile.py::test_a_racing_link_never_leads_outside",
    ),
    Right(
        "pipes and sockets",
        "the image has them where libraries are mounted",
        "none is opened, nothing hangs",
        "kernel/test_apply_hostile.py::test_fifos_and_sockets_are_mounted_over_without_opening",
    ),
    Right(
        "a library of the image",
        "the image brings a library of the driver's name",
        "the host's covers it",
        "kernel/test_apply_hostile.py::test_a_library_baked_into_the_image_is_covered",
    ),
    Right(
        "a rootfs of somebody else",
        "`configure` is told another container's rootfs",
        "refused",
        "kernel/test_apply_hostile.py::test_a_rootfs_of_somebody_else_is_refused",
    ),
    Right(
        "device nodes of an image",
        "`/etc/ld.so.cache` and libraries are device nodes",
        "none is opened",
        "kernel/test_image_nodes.py::test_by_a_start",
    ),
    Right(
        "programs of an image",
        "shells, Python modules and audit libraries that bite",
        "none is run",
        "kernel/test_hook_hostile.py::test_nothing_of_the_image_is_executed",
    ),
    Right(
        "the caller's environment",
        "loader and Python variables, a hostile working directory",
        "they reach no interpreter",
        "kernel/test_hook_hostile.py::test_called_with_a_hostile_environment_and_directory",
    ),
    Right(
        "a volume shared with the host",
        "the library directory is in a volume with shared propagation",
        "no mount reaches the host",
        "kernel/test_apply_propagation.py::test_nothing_is_mounted_on_a_volume_that_the_host_shares",
    ),
    Right(
        "a shared volume over the slice",
        "the slice's own directory is in a volume with shared propagation",
        "the start is refused",
        "kernel/test_cdi_slices.py::test_a_slice_is_not_mounted_where_the_host_would_see_it",
    ),
    Right(
        "descriptors of the applier",
        "a process of the container looks for the host's descriptors in it",
        "none is there to take",
        "kernel/test_apply_descriptors.py::test_descriptors_cannot_be_taken",
    ),
    # Devices.
    Right(
        "a mounted node",
        "the node of another GPU comes in a volume",
        "the start is refused",
        "kernel/test_cdi_slices.py::test_a_node_that_is_mounted_is_refused",
    ),
    Right(
        "a made node",
        "the container makes a GPU's node with mknod",
        "the device cgroup allows no mknod",
        "kernel/test_cgroup_v2.py::test_mknod_is_never_granted",
    ),
    Right(
        "a node of another device",
        "a node with the driver's name is another device",
        "refused",
        "kernel/test_configure_bad_calls.py::test_a_node_that_is_not_the_drivers",
    ),
    # The slice.
    Right(
        "moved libraries",
        "the container moves its libraries and puts a quota of its own in their place",
        "the slice lives on, and counts",
        "kernel/test_cdi_slices.py::test_a_slice_lives_wherever_its_container_moves_its_files",
    ),
    Right(
        "long lists of mounts",
        "mount namespaces with thousands of mounts of long names each",
        "nobody waits for them to be read; who has ended is in doubt",
        "unit/test_vgpu_registry.py::test_lists_of_mounts_that_are_too_long_are_a_doubt",
    ),
    Right(
        "no hooks",
        "an engine leaves the hooks out, so that there is no quota",
        "every allocation fails",
        "kernel/test_cdi_slices.py::test_without_its_hooks_the_shim_gives_nothing",
    ),
    Right(
        "a slice of a slice",
        "a container in the container asks for more",
        "it shares the outer one's limit",
        "kernel/test_vgpu_nested.py::test_it_shares_the_slice",
    ),
    Right(
        "a set-user-ID program",
        "the loader ignores its variables",
        "the limit holds",
        "kernel/test_vgpu_live.py::test_a_set_user_id_program",
    ),
    Right(
        "the quota's file",
        "root in the container writes, cuts, removes, unmounts, covers and remounts it",
        "it stays as the host wrote it",
        "adversary/test_rights.py::test_the_quota_stays_the_hosts",
    ),
    Right(
        "a user namespace",
        "root of a user namespace, with all capabilities there, changes the quota's file",
        "it stays as the host wrote it",
        "adversary/test_rights.py::test_the_quota_stays_the_hosts",
    ),
    Right(
        "resource limits",
        "descriptors, memory, processes and files of a program in the container are few",
        "its limit",
        "adversary/test_rights.py::test_limits_of_the_system",
    ),
    Right(
        "torn quotas and entries",
        "state that is torn, cut short, of another version, of another owner, or a link",
        "what depends on it is refused, and the file is named",
        "kernel/test_vgpu_closed.py::test_of_a_slice",
    ),
    Right(
        "a bad quota",
        "the quota is cut short, or of another version",
        "memory is denied",
        "native/test_vgpu_hostile.py::test_a_bad_quota",
    ),
    Right(
        "a bad ledger",
        "the ledger is cut short, or of another size",
        "memory is denied",
        "native/test_vgpu_hostile.py::test_a_bad_ledger",
    ),
    Right(
        "a ledger full of noise",
        "random bytes are written to it while processes run",
        "nobody else notices",
        "native/test_vgpu_hostile.py::test_a_ledger_that_is_scribbled_over",
    ),
    Right(
        "a liar's numbers",
        "the ledger says numbers that overflow sums",
        "the operator sees numbers",
        "kernel/test_vgpu_live.py::test_numbers_of_a_liar_stay_numbers",
    ),
    Right(
        "clocks of its own",
        "a time namespace whose clock is a year away",
        "its entitlement",
        "kernel/test_nvcd_clock.py::test_clocks_of_their_own",
    ),
    Right(
        "a clock that jumps",
        "the wall clock jumps by years at each look",
        "its entitlement",
        "kernel/test_nvcd_clock.py::test_a_wall_clock_that_jumps",
    ),
    # Around the shim: only nvcd sees that.
    Right(
        "the driver's own library, for memory",
        "a process of the slice opens it",
        'the slice is given no more; with `on-bypass = "stop"` the process is killed',
        "kernel/test_nvcd_ledger.py::test_what_is_taken_around_the_shim_counts",
    ),
    Right(
        "a quota of its own",
        "another quota covers the slice's in a new mount namespace, or lies beside a copy of the shim",
        "its slice is given no more; with `on-bypass = \"stop\"` the process is killed",
        "adversary/test_forged.py::test_a_quota_of_its_own",
    ),
    Right(
        "too much memory",
        "a slice has more than its limit",
        "it is denied more within a second",
        "kernel/test_nvcd_found.py::test_a_slice_that_has_too_much_is_denied_more",
    ),
    Right(
        "the driver's own library, for time",
        "a process launches with it, beside the shim",
        'found in a window of 6 s; with `on-overuse = "stop"` that process alone is killed',
        "kernel/test_nvcd_use.py::test_who_works_around_the_shim_is_stopped",
    ),
    # nvcd's socket.
    Right(
        "strangers",
        "a process that is in no slice asks nvcd for leases",
        "refused",
        "kernel/test_nvcd.py::test_strangers_are_refused",
    ),
    Right(
        "another root directory",
        "a process of the slice changes its root",
        "nvcd still knows its slice",
        "kernel/test_nvcd.py::test_a_process_with_another_root_directory",
    ),
    Right(
        "nonsense",
        "messages that make no sense",
        "the connection ends",
        "kernel/test_nvcd.py::test_nonsense_ends_the_connection",
    ),
    Right(
        "a flood of messages",
        "as many as the socket takes",
        "it costs its sender",
        "kernel/test_nvcd.py::test_a_flood_costs_its_sender",
    ),
    Right(
        "descriptors for nvcd",
        "a message carries a socket whose last close takes a minute, or hours",
        "the kernel refuses it, or its sender is disconnected; nobody waits",
        "kernel/test_nvcd_descriptors.py::test_on_an_older_kernel_nobody_waits",
    ),
    Right(
        "a flood of connections",
        "as many as there are descriptors",
        "it costs its sender",
        "kernel/test_nvcd.py::test_a_flood_of_connections_costs_its_sender",
    ),
    Right(
        "a lease that is kept",
        "the holder never gives its lease back",
        "the next one begins",
        "kernel/test_nvcd.py::test_who_never_gives_back_loses_its_turn",
    ),
    Right(
        "a connection in other hands",
        "a process gives its connection with nvcd to one of another slice (SCM_RIGHTS)",
        "leases are those of the slice whose process made it, and end with that process",
        "kernel/test_nvcd.py::test_a_connection_in_the_hands_of_another_slice",
    ),
    Right(
        "variables of MPS",
        "the container sets CUDA_MPS_PIPE_DIRECTORY, memory limits and priorities of its own",
        "its limit",
        "adversary/test_rights.py::test_limits_of_the_system",
    ),
    Right(
        "many late processes",
        "twelve processes whose queued kernels run on after each lease",
        "the other one is charged for a thirteenth of that time",
        "unit/test_daemon_arbiter.py::test_beside_many_late_processes_one_pays_for_its_own_part",
    ),
    Right(
        "a killed holder",
        "the holder of a lease is killed, a child of it lives on",
        "the next one begins",
        "kernel/test_nvcd.py::test_the_death_of_a_holder_whose_child_lives_on",
    ),
    Right(
        "nvcd's questions",
        "somebody who is not root asks for its state",
        "refused",
        "kernel/test_nvcd_ledger.py::test_nobody_else_may_ask",
    ),
    # NVML's process.
    Right(
        "the probe",
        "NVML is hostile code in a process of nvc's",
        "it can start no process; without limits by cgroup it has no rights",
        "kernel/test_probe.py::test_the_probe_has_no_rights_left",
    ),
)

DENIED = re.compile(
    "Read-only file system|Operation not permitted|permission denied|Device or resource busy"
)
QUOTA = f"{LIBS}/nvc/quota"
#: What root in a container does to the quota's file, each by itself.
#: It must fail, or change nothing that counts.
ON_QUOTA = {
    "written": f"busybox dd if=/dev/zero of={QUOTA} bs=64 count=1 conv=notrunc",
    "cut short": f": > {QUOTA}",
    "removed": f"busybox rm -f {QUOTA}",
    "mounted anew, writable": f"busybox mount -o remount,rw,bind {QUOTA} && : > {QUOTA}",
    "unmounted": f"busybox umount -l {QUOTA}",
    "covered": f"busybox mount -t tmpfs none {LIBS}/nvc",
    "given away": f"busybox chown 1000 {QUOTA}; busybox chmod 666 {QUOTA} && : > {QUOTA}",
    "mounted anew in a user namespace": f"busybox unshare -Um busybox mount -o remount,rw,bind {QUOTA}",
    "unmounted in a user namespace": f"busybox unshare -Um busybox umount -l {QUOTA}",
    "written in a user namespace": f"busybox unshare -Um sh -c ': > {QUOTA}'",
    "written from another root": f"busybox chroot {LIBS}/nvc /quota; : > /proc/1/root{QUOTA}",
}
