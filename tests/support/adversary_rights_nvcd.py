"""Programs that nvcd and the probe must withstand, or find: the tests that have them."""

from __future__ import annotations

from .adversary_rights import Right

NVCD = (
    # Around the shim: only nvcd sees that.
    Right(
        "the driver's own library, for memory",
        "a process of the slice opens it",
        'the slice is given no more; with `on-bypass = "stop"` the process is killed',
        "kernel/test_nvcd_ledger.py::test_what_is_taken_around_the_shim_counts",
    ),
    Right(
        "memory of the dead",
        "a child shares the descriptors of a process around the shim, which ends",
        "what NVML lists of that process counts for its slice, after 5 s",
        "unit/test_daemon_ended.py::test_memory_that_outlives_its_process",
    ),
    Right(
        "who has the memory of the dead",
        "the largest process of a slice is gone, and a child has its memory, while a violation is stopped",
        'with `on-excess = "stop"` the child is killed, and nobody of other slices',
        "unit/test_daemon_ended.py::test_who_has_the_memory_of_the_dead_is_stopped",
    ),
    Right(
        "an account of its own",
        "a process around the shim writes an entry for itself into the ledger",
        "what it has beyond the limit is found, and its slice is given no more",
        "kernel/test_nvcd_found.py::test_an_account_of_its_own",
    ),
    Right(
        "a quota of its own",
        "another quota covers the slice's in a new mount namespace, or lies beside a copy of the shim; the slice's "
        "may be unmounted",
        "its slice is given no more; with `on-bypass = \"stop\"` the process is killed",
        "adversary/test_forged.py::test_a_quota_of_its_own",
    ),
    Right(
        "a hidden slice",
        "a process of any user leaves all of the container's files behind, as root of a user namespace",
        'its slice is given no more; with `on-excess = "stop"` the process is killed',
        "kernel/test_nvcd_containers.py::test_a_process_that_hides_its_slice",
    ),
    Right(
        "a hidden slice, and cgroups",
        "a container with the host's pid namespace makes cgroups in its own; its first process moves to one, and "
        "who hides to another",
        "nvcd knows the slice",
        "kernel/test_nvcd_lineage.py::test_cgroups_that_a_container_makes",
    ),
    Right(
        "another's slice",
        "a file of the same file system is called as the quota of another slice",
        "what the process has does not count for that slice",
        "kernel/test_nvcd_found.py::test_a_file_with_the_name_of_anothers_quota",
    ),
    Right(
        "many groups",
        "a process has 65,536 groups, so that what the kernel says of it is long",
        "nvcd still knows its number in the ledger",
        "kernel/test_nvcd_lineage.py::test_a_process_with_many_groups",
    ),
    Right(
        "thousands of threads",
        "a process has thousands of threads, and its first one has ended",
        "nobody waits for them to be listed",
        "kernel/test_nvcd_lineage.py::test_a_process_with_many_threads",
    ),
    Right(
        "too much memory",
        "a slice has more than its limit",
        "it is denied more within a second",
        "kernel/test_nvcd_found.py::test_a_slice_that_has_too_much_is_denied_more",
    ),
    # nvcd's sockets.
    Right(
        "variables of MPS",
        "the container sets CUDA_MPS_PIPE_DIRECTORY, memory limits and priorities of its own",
        "its limit",
        "adversary/test_rights.py::test_limits_of_the_system",
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
