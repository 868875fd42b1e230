"""`nvc-cli doctor`: what is wrong with this host or with one container, and how to mend it."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import CompletionItem

from nvc.base.program import programs
from nvc.discovery.containers.running import known, resolve
from nvc.doctor import Result, document, examine, text
from nvc.doctor.archive import write_archive
from nvc.doctor.catalog import CHECKS, choose
from nvc.doctor.context import Context
from nvc.doctor.kubernetes.cluster import Node
from nvc.kernel import LinuxKernel, privileges
from nvc.model.request import place
from nvc_cli import arguments, output
from nvc_cli.main import command, filled, flag, format_option, value
from nvc_cli.parse import Values


def _names(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    groups = dict.fromkeys(check.name.partition(".")[0] for check in CHECKS)
    offers = [(group, f"every check of {group}") for group in groups]
    offers += [(check.name, check.title) for check in CHECKS]
    return [CompletionItem(name, help=text) for name, text in offers if name.startswith(begun)]


def _containers(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    return [CompletionItem(id, help=place) for id, place in known() if id.startswith(begun)]


@command(
    "doctor",
    "nvc-cli doctor",
    "nvc-cli doctor driver nodes.gpus",
    "nvc-cli doctor --container 3f2a9c",
    "nvc-cli doctor --kubernetes --claim team/train-gpu-x7k2p",
    "nvc-cli doctor --bundle /tmp/nvc-doctor.tar.gz",
)
@value("--container", "ID|PID", "Check this running container.", default=None, shell_complete=_containers)
@flag("--kubernetes", "Check this Kubernetes node and its plugin.")
@value("--claim", "NAMESPACE/NAME", "Also check this claim of a pod on this node. Implies --kubernetes.",
       callback=filled)  # fmt: skip
@value("--kubeconfig", "FILE", "With --kubernetes: how to reach the API server. Default: the pod's account.",
       type=click.Path(dir_okay=False), callback=filled)  # fmt: skip
@value("--state-dir", "DIR", "With --kubernetes: where the plugin keeps its state.",
       default="/var/lib/nvc/kubernetes")  # fmt: skip
@format_option("text", "table")
@flag("--all", "everything", "Also show checks that passed.")
@flag("--strict", "Exit 1 for warnings too.")
@flag("--list", "listing", "List the checks.")
@value("--bundle", "FILE", "Also write an archive to send with a request for help.",
       type=click.Path(dir_okay=False), callback=filled)  # fmt: skip
@flag("--unmasked", "With --bundle: do not mask names of hosts, users and devices.")
@click.argument("checks", metavar="[CHECK...]", nargs=-1, shell_complete=_names)
@click.pass_context
def doctor(
    ctx: click.Context, /, container: str | None, kubernetes: bool, claim: str, kubeconfig: str, state_dir: str,
    form: str, everything: bool, strict: bool, listing: bool, bundle: str, unmasked: bool, checks: tuple[str, ...],
) -> None:  # fmt: skip
    """Find problems of this host, a container or a Kubernetes node, and how to mend them.

    Nothing is changed. Exit code 0: no failure. 1: a check failed. 2: no failure, but some checks could not run,
    for example without root. A CHECK is a name of --list, or the part of it before the dot.
    """
    if unmasked and not bundle:
        raise click.UsageError("--unmasked goes with --bundle")
    kubernetes = kubernetes or bool(claim)
    if kubeconfig and not kubernetes:
        raise click.UsageError("--kubeconfig goes with --kubernetes")
    given = {"container": container is not None, "kubernetes": kubernetes, "claim": claim}
    if listing:
        _list(checks, tuple(given), form)
        return
    chosen = choose(checks, tuple(name for name, value in given.items() if value))
    if bundle:
        bundle = os.path.abspath(bundle)
    privileges.reduce("configure")
    found = None if container is None else resolve(container)
    node = Node(state_dir, kubeconfig, claim, dict(os.environ)) if kubernetes else None
    with _context(ctx.obj["globals"], node) as context:
        context.container = found
        results = examine(context, chosen)
        reason = text.reason(results) if found else ""
        passed = everything or bool(checks)
        end = f"a GPU program in {container} fails: {reason}\n" if reason else ""
        output.show(
            form,
            lambda: _document(results, context, reason),
            lambda width: text.table(results, width),
            lambda: text.report(results, passed, output.coloured(), output.columns()) + end,
        )
        if bundle:
            count = write_archive(context, results, text.report(results, passed) + end, bundle, unmasked)
            output.say("nvc-cli", f"{bundle} has {count} files: look through it before you send it")
    ctx.exit(text.exit_code(results, strict))


def _list(names: tuple[str, ...], places: tuple[str, ...], form: str) -> None:
    listed = choose(names, places) if names else CHECKS
    rows = [{"check": check.name, "title": check.title} for check in listed]
    form = "text" if form == "table" else form
    output.show(form, lambda: {"schemaVersion": 1, "checks": rows}, str, lambda: text.listing(listed))


def _context(values: Values, node: Node | None) -> Context:
    """What the checks look at, `node` with --kubernetes. They find out what is wrong with a configuration."""
    options = arguments.driver_options(values, own_ids=True, configured=False)
    root, ldcache = (getattr(options, name) if name in values else "" for name in ("root", "ldcache"))
    if node is not None and node.found is not None and node.found.root and not root:
        root, ldcache = place(node.found.root, "")
        options = options.replace(root=root, ldcache=ldcache)
    context = Context(LinuxKernel(), options, root, ldcache, programs())
    context.node = node
    return context


def _document(results: tuple[Result, ...], context: Context, reason: str) -> dict[str, Any]:
    made, found = document(results), context.container
    if found is not None:
        whole = {"name": found.name, "pid": found.pid, "id": found.id or None, "reason": reason or None}
        made["container"] = whole
    return made
