"""Completion in shells: click's scripts, and the values that options take."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from nvc.errors import NvcError
from nvc_cli import arguments, output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Items: TypeAlias = list[CompletionItem[str]]

SHELLS = ("bash", "zsh", "fish")
TIMEOUT = 2.0  # seconds that somebody who pressed TAB is made to wait for the driver

_CHOICES: dict[str, tuple[str, ...]] = {
    "cuda-compat-mode": arguments.COMPAT_MODES,
    "mig-config": ("all",),
    "mig-monitor": ("all",),
}


def complete(option: str) -> Callable[[click.Context, click.Parameter, str], Items] | None:
    """The function by which click completes the value of `option`, if there is anything to offer."""

    def items(ctx: click.Context, _: click.Parameter, begun: str) -> Items:
        if option == "format":
            offers = ("text", "json") if ctx.info_name == "configure" else ("text", "table", "json")
            return [CompletionItem(offer) for offer in offers if offer.startswith(begun)]
        return [CompletionItem(offer) for offer in _CHOICES[option] if offer.startswith(begun)]

    if option == "device":
        return _devices
    if option in ("debug", "ldcache", "ldconfig"):
        return lambda *_: [CompletionItem("", type="file")]
    if option == "root":
        return lambda *_: [CompletionItem("", type="dir")]
    return items if option == "format" or option in _CHOICES else None


def _devices(ctx: click.Context, _: click.Parameter, begun: str) -> Items:
    """The selectors of this host's devices; none where the driver cannot be asked."""
    from nvc.discovery import discover
    from nvc.kernel import LinuxKernel

    parent = ctx.parent.params if ctx.parent else {}
    values: dict[str, Any] = {name: value for name, value in parent.items() if value}
    try:
        options = arguments.driver_options(values, own_ids=True).replace(timeout=TIMEOUT)
        facts = discover(LinuxKernel(), options)
    except (NvcError, OSError):
        return []
    offers = [("all", "every device")]
    for gpu in facts.gpus:
        offers += [(str(gpu.index), gpu.name), (gpu.uuid, gpu.name)]
        for mig in gpu.mig:
            text = f"MIG device of GPU {gpu.index}"
            offers += [(f"{gpu.index}:{mig.index}", text), (mig.uuid, text)]
    return [CompletionItem(offer, help=text) for offer, text in offers if offer.startswith(begun)]


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete nvc-cli's commands, options and devices.

    \b
    bash: nvc-cli completion bash > /etc/bash_completion.d/nvc-cli
    zsh:  nvc-cli completion zsh > /usr/local/share/zsh/site-functions/_nvc-cli
    fish: nvc-cli completion fish > /etc/fish/completions/nvc-cli.fish
    """
    from nvc_cli.main import COMPLETE_VARIABLE, program_of, tree

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click cannot complete in {shell}")
    script = found(tree, {}, program_of(ctx), COMPLETE_VARIABLE)
    output.write(script.source_template % script.source_vars())
