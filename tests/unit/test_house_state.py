"""No read of state whose failure is passed over: what cannot be read denies what depends on it, or is told."""

from __future__ import annotations

import ast
import re

from support.sources import read, sources, tree

#: Functions that read what nvc has written for itself: entries, quotas, policies, ledgers, measurements.
READERS = frozenset(
    "read_entry read_quota sound_quota living living_of snapshot sharers use_of budgets_of statuses slices "
    "open_own is_bound quota.read quota.unpack quota.finish policies.read policies.parse calibration.load "
    "mps_records.read mps_records.directories ledger.parse ledger.parse_slots ledger.parse_budgets "
    "known.read entry_names entries sound_entries entry_at".split()
)
#: A call of one of these, by its last name.
READ_CALLED = re.compile(rf"\b(?:{'|'.join(one.rpartition('.')[2] for one in READERS)})\(")
#: Whatever is read here is state: nothing of it is a container's file that may well be missing or odd.
STATE = (
    "nvc/slices/",
    "nvc/model/slices/",
    "nvc/daemon/audit/a",
    "nvc/daemon/audit/holders.py",
    "nvc/daemon/audit/nvml_client.py",
    "nvc/daemon/audit/stale_accounts.py",
    "nvc/daemon/io/identity.py",
    "nvc/daemon/io/lineage.py",
    "nvc/daemon/mps/",
    "nvc/frontends/cdi/hooks/slices.py",
    "nvc/frontends/cdi/hooks/nodes.py",
    "nvc/daemon/schedule/",
)
#: Exceptions that say that something cannot be read, and not merely that it is not there or has ended.
UNREAD = frozenset(
    "OSError Exception BaseException NvcError RegistryError QuotaError LedgerError PolicyError CalibrationError "
    "InitializationError PermissionError ContainerError DeviceError".split()
)
#: Calls that find nothing where they cannot look.
BLIND = frozenset("exists isfile isdir islink lexists glob iglob suppress walk is_file is_dir".split())
EMPTY = frozenset("set frozenset dict list tuple bytes str bytearray".split())
#: Where it is right, by file and function.
REASONS = {
    "nvc/frontends/cdi/hooks/slices.py _note": "without the note, the next start asks Python again",
    "nvc/daemon/audit/stale_accounts.py __init__": "what cannot be told stays in the ledger",
    "nvc/daemon/io/identity.py parent_of": "0 is nobody: such a process counts as a stranger",
    "nvc/daemon/io/lineage.py _first_in": "an older kernel: nobody more is found",
    "nvc/daemon/io/lineage.py _pid_namespaces": "a process that is beside nvcd's pid namespace, in no slice",
    "nvc/daemon/mps/servers.py _clear": "removes what nobody uses",
    "nvc/daemon/mps/servers.py _remove": "likewise",
    "nvc/daemon/mps/records.py empty": "there is none",
    "nvc/daemon/mps/answers.py _tail": "lines for the log, and who is to blame: the event says that nobody tells",
    "nvc/daemon/mps/answers.py size_of": "a log that is not there yet",
    "nvc/daemon/mps/shared.py _slice_of": "a process that has ended is in no slice",
    "nvc/daemon/schedule/slice_index.py raw_uuid": "a name, not a file: a device without a UUID has zeros",
    "nvc/slices/admin/check.py _beside": "what is mapped from there stays uncovered, and is told",
    "nvc/slices/admin/check.py _read": "likewise",
    "nvc/slices/admin/coverage.py _is_process": "it is then looked for as the name of a slice, or refused",
    "nvc/slices/make/builder.py _has_selinux": "without the label programs cannot open the ledger, and are denied",
    "nvc/slices/make/calibration.py store": "what is measured anew replaces what cannot be read",
    "nvc/slices/client/mps.py stop": "nvcd ends the servers of slices that are gone",
    "nvc/slices/client/nvcd.py silence": "the text that is returned says it",
    "nvc/slices/show/history.py _kept": "the slice's own figures are shown then, or none",
    "nvc/slices/store/status.py _with_host_pids": "the number is shown as `?`",
    "nvc/slices/store/limits.py finish": "what could not be ended is as torn as before: the caller denies",
    "nvc/model/slices/entry.py is_remnant": "it stays",
    "nvc/slices/store/process_info.py _farthest": "a runtime's own process, which nobody may look into, is the one",
    "nvc/slices/store/process_info.py namespace_id": "0 says that it is not known, and others then decide",
    "nvc/slices/store/process_info.py cgroup_of": "a name for people",
}


def names_of(node: ast.expr | None) -> set[str]:
    """The names in an expression, `module.name` as `name` too."""
    found = set()
    for inner in ast.walk(node) if node is not None else ():
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute):
            found.add(inner.attr)
            if isinstance(inner.value, ast.Name):
                found.add(f"{inner.value.id}.{inner.attr}")
    return found


def calls(nodes: list[ast.stmt]) -> set[str]:
    """What is called in statements: `name`, and `module.name`."""
    found = set()
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Call):
            found |= names_of(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else set()
    return found


def is_silent(handler: ast.ExceptHandler) -> bool:
    """Whether nothing is done about the failure, nor told, nor kept: at most an empty value is made."""
    inner = [node for one in handler.body for node in ast.walk(one)]
    if any(isinstance(node, ast.Raise) for node in inner):
        return False
    if any(isinstance(node, ast.Name) and node.id == handler.name for node in inner):
        return False
    return not calls(handler.body) - EMPTY


def handles_unread(handler: ast.ExceptHandler) -> bool:
    """Whether it is for failures to read."""
    return handler.type is None or bool(names_of(handler.type) & UNREAD)


def passed_over(module: str | ast.Module, everything: bool = False) -> list[str]:
    """The functions in which the failure of a read is passed over. `everything`: each one is a read of state."""
    found = []
    for function in ast.walk(ast.parse(module) if isinstance(module, str) else module):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Try):
                silent = [one for one in node.handlers if is_silent(one) and handles_unread(one)]
                if silent and (everything or READERS & calls(node.body)):
                    found.append(function.name)
            elif isinstance(node, ast.With) and "suppress" in {
                name for item in node.items for name in names_of(item.context_expr)
            }:
                if everything or READERS & calls(node.body):
                    found.append(function.name)
            elif everything and isinstance(node, ast.Call) and names_of(node.func) & BLIND:
                found.append(function.name)
    return found


def unexplained(name: str) -> list[str]:
    """Only files that may hold a read are parsed: that takes much longer than to search them."""
    text = read(name)
    if not name.startswith(STATE) and not (READ_CALLED.search(text) and re.search("except|suppress", text)):
        return []
    found = passed_over(tree(name), name.startswith(STATE))
    return [one for one in found if f"{name} {one}" not in REASONS]


def test_no_failure_of_a_read_is_passed_over() -> None:
    every = {name: unexplained(name) for name in sources(".py") if name.startswith("nvc/")}
    found = {name: functions for name, functions in every.items() if functions}
    assert not found, f"{found}: deny what depends on it, or tell it"


def test_each_reason_has_its_place() -> None:
    for place in REASONS:
        name, function = place.split()
        assert function in passed_over(tree(name), name.startswith(STATE)), f"{place}: no longer needed"


#: What tells whether a slice lives, and who may ask: all others ask nvc.slices.store.liveness.
LIFE = {
    # The second asks whose a process is, the third of MPS servers, the last three of suspended ones.
    "is_here": {
        "nvc/slices/store/liveness.py",
        "nvc/daemon/io/lineage.py",
        "nvc/daemon/mps/servers.py",
        "nvc/daemon/suspend/hooks.py",
        "nvc/daemon/suspend/suspender.py",
        "nvc/daemon/suspend/swap.py",
    },
    "namespace_id_of": {"nvc/slices/store/liveness.py", "nvc/slices/store/process_info.py"},
}


def test_one_module_decides_whether_a_slice_lives() -> None:
    for name, wanted in LIFE.items():
        named = [source for source in sources(".py") if source.startswith("nvc/") and name in read(source)]
        callers = {source for source in named if name in calls(tree(source).body)}
        assert callers == wanted, name
