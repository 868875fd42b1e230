"""Containers and programs that try to have more rights: the tests that have them, each beside what it is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Right:
    name: str
    tries: str
    holds: str
    test: str  # the file below tests/, and the function


CONTAINERS = (
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
        "a copy in a preferred directory",
        "copies of libcuda are where loaders look first: below `glibc-hwcaps`, or by `$LIB`, `$PLATFORM` and "
        "`$ORIGIN` in `LD_LIBRARY_PATH`",
        "the shim covers each of them",
        "kernel/test_vgpu_hook.py::test_wherever_the_loader_of_the_image_looks_first",
    ),
    Right(
        "more directories than nvc searches",
        "a copy of libcuda is in the last of many directories of `LD_LIBRARY_PATH`",
        "the start is refused",
        "unit/test_library_path.py::test_more_directories_than_anybody_has",
    ),
    Right(
        "a cache with more directories than nvc searches",
        "the image's loader cache names so many that `LD_LIBRARY_PATH` comes too late",
        "the start is refused",
        "unit/test_shadow_libraries.py::test_more_directories_than_anybody_has",
    ),
    Right(
        "a directory with more names than nvc reads",
        "a copy of libcuda is behind 65,536 other names in a directory of `LD_LIBRARY_PATH`",
        "the start is refused",
        "unit/test_shadow_libraries.py::test_more_names_than_anybody_has",
    ),
    Right(
        "a directory that is mounted twice",
        "a volume with a copy of libcuda is at two places, one of which may be CUDA's compat directory",
        "the shim covers the copy in both",
        "kernel/test_vgpu_hook.py::test_a_directory_that_is_mounted_twice",
    ),
    Right(
        "above the target of a link",
        "a directory of `LD_LIBRARY_PATH` has `..` behind a link, so that it is elsewhere than its text says",
        "the shim covers the copy of libcuda there",
        "unit/test_shadow_libraries.py::test_what_is_above_the_target_of_a_link",
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
        "odd ways to load",
        "libcuda twice in link-map namespaces, from memory, from a moved directory; or a child shares all with "
        "its parent, which ends",
        "its limit",
        "native/test_vgpu_odd.py::test_the_limit_holds",
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
        "a clock that was replaced",
        "a preloaded library has a clock that runs ten times as fast, as libfaketime has",
        "its cap",
        "native/test_vgpu_clock.py::test_a_clock_that_was_replaced",
    ),
    Right(
        "a cap for a clock of unknown origin",
        "a program hides `/proc` while it has no cap, and then gets one",
        "its launches are denied",
        "adversary/test_clocks.py::test_with_a_cap_that_comes_later_there_is_no_launch",
    ),
    Right(
        "cgroups of its own",
        "a container that the driver limits makes a cgroup in its own, moves there, and the host changes the limit",
        "the new limit",
        "kernel/test_kernel_isolation.py::test_configure_again_and_what_it_says",
    ),
    Right(
        "a spoilt ledger",
        "the ledger is a pipe, a directory, a link, gone, cut short or rubbish",
        "what the slice has counts by NVML alone; others are verified as before",
        "kernel/test_nvcd_ledger.py::test_a_ledger_that_was_spoilt",
    ),
    Right(
        "a file system that never answers",
        "the slice's files are on one, while nvcd starts and when it looks again",
        "others are served",
        "kernel/test_nvcd_silent.py::test_others_are_served",
    ),
    Right(
        "a ledger elsewhere",
        "the ledger is on a file system that is no tmpfs",
        "nvcd does not open it",
        "kernel/test_nvcd_silent.py::test_ledgers_elsewhere",
    ),
    Right(
        "a /dev that never answers",
        "a container's /dev is on a file system that never answers, while doctor looks at scopes of systemd",
        "doctor answers",
        "kernel/test_doctor_silent.py::test_a_dev_that_never_answers",
    ),
    Right(
        "a scope with another's name",
        "a user or container makes a cgroup that is called as the scope of another container",
        "doctor does not advise to give that one GPUs",
        "unit/test_doctor_parsers.py::test_the_scope_of_a_cgroup",
    ),
    Right(
        "many locks",
        "a program holds thousands of locks on the ledger",
        "nobody waits for them to be read",
        "kernel/test_nvcd_silent.py::test_locks_by_the_thousand",
    ),
    Right(
        "mappings behind many others",
        "a process maps so many files that its list of mappings is not read to its end",
        "`vgpu check` says that it is not covered",
        "unit/test_vgpu_coverage.py::test_more_mappings_than_are_read_are_not_covered",
    ),
    Right(
        "a slice that cannot be looked through",
        "a container has more directories, copies or names than nvc reads, while `vgpu check --all` looks",
        "it is named; others are looked at",
        "unit/test_vgpu_coverage.py::test_a_slice_with_too_many_files_does_not_hide_the_others",
    ),
    Right(
        "silent readers of metrics",
        "connections that ask nothing, or half a question, take all places",
        "one more is served",
        "kernel/test_nvcd_ledger.py::test_those_who_ask_nothing_keep_no_scraper_waiting",
    ),
)
