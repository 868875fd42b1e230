"""Completion in shells: click's scripts, and the values that options take."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class

from nvc.base.errors import NvcError
from nvc.model.slices.isolation import ISOLATIONS
from nvc.model.slices.policy import POLICIES
from nvc.slices.store.status import SliceStatus
from nvc_cli import arguments, output
from nvc_cli.options import FORMATS

Items: TypeAlias = list[CompletionItem[str]]
Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], Items]

SHELLS = ("bash", "zsh", "fish")
TIMEOUT = 2.0  # seconds that somebody who pressed TAB is made to wait for the driver

#: bash splits words at = and : as well, so `--device=0:1` comes in five of them. They are put together again, and
#: of an offer only what comes behind the last colon is for bash.
BASH = r"""%(complete_func)s() {
    local IFS=$'\n' word type value before joint= words=()
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} -gt 0 && ($joint || $word == [=:]*) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        [[ $word == *[=:] ]] && joint=1 || joint=
    done
    before=${words[-1]}
    [[ $before == -*=* ]] && before=${before#*=}
    [[ $before == *:* && $COMP_WORDBREAKS == *:* ]] && before=${before%%:*}: || before=
    COMPREPLY=()
    for value in $(
        COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) %(complete_var)s=bash_complete "$1"
    ); do
        IFS=, read -r type value <<< "$value"
        case $type in
        dir) compopt -o dirnames ;;
        file) compopt -o default ;;
        plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_CHOICES: dict[str, tuple[str, ...]] = {
    "format": FORMATS,
    "cuda-compat-mode": arguments.COMPAT_MODES,
    "mig-config": ("all",),
    "mig-monitor": ("all",),
    "vgpu-policy": POLICIES,
    "isolation": ISOLATIONS,
}


def complete(option: str) -> Completer | None:
    """The function by which click completes the value of `option`, if there is anything to offer."""
    if option == "device":
        return devices
    if option in ("debug", "ldcache", "ldconfig"):
        return lambda *_: [CompletionItem("", type="file")]
    if option == "root":
        return lambda *_: [CompletionItem("", type="dir")]
    return one_of(*_CHOICES[option]) if option in _CHOICES else None


def one_of(*names: str) -> Completer:
    """The function that offers these names."""
    return lambda _, __, begun: _items([(name, "") for name in names], begun)


def devices(ctx: click.Context, _: click.Parameter, begun: str) -> Items:
    """The selectors of this host's devices, also behind a comma; none where the driver cannot be asked."""
    from nvc.discovery import discover
    from nvc.kernel import LinuxKernel

    values: dict[str, Any] = {name: value for name, value in ctx.find_root().params.items() if value}
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
    before = begun[: begun.rfind(",") + 1]
    return _items([(before + offer, text) for offer, text in offers], begun)


def _names(alive: bool) -> Completer:
    """Offers names of slices, for root; those that are typed already are not offered again."""

    def names(ctx: click.Context, _: click.Parameter, begun: str) -> Items:
        typed = ctx.params.get("names") or ()
        offers = []
        for tenant in _tenants():
            shown = ", ".join(device.name for device in tenant.devices if not device.hidden)
            count = len(tenant.pids)
            state = f"{count} process{'es' if count > 1 else ''}" if count else "gone"
            if tenant.alive == alive and tenant.name not in typed:
                offers.append((tenant.name, f"{shown or 'no device'}, {state}"))
        return _items(offers, begun)

    return names


slices, gone_slices = _names(True), _names(False)


def programs(ctx: click.Context, _: click.Parameter, begun: str) -> Items:
    """The programs on the PATH, and files behind the first word."""
    if ctx.params.get("words") or "/" in begun:
        return [CompletionItem("", type="file")]
    found: set[str] = set()
    for directory in os.environ.get("PATH", "").split(":"):
        try:
            entries = os.scandir(directory or ".")
        except OSError:
            continue
        found.update(one.name for one in entries if one.name.startswith(begun) and os.access(one.path, os.X_OK))
    return [CompletionItem(name) for name in sorted(found)]


def command_words(ctx: click.Context, _: click.Parameter, begun: str) -> Items:
    """The commands behind those that are typed after `help`."""
    from nvc_cli.main import tree

    at: click.Command | None = tree
    for word in ctx.params.get("command") or ():
        at = at.get_command(ctx, word) if isinstance(at, click.Group) else None
    names = at.list_commands(ctx) if isinstance(at, click.Group) else []
    return _items([(name, "") for name in names], begun)


def devices_of_slice(ctx: click.Context, _: click.Parameter, begun: str) -> Items:
    """The devices of the slice that is typed already."""
    from nvc.slices.store.status import find

    # click gives up where an option has no value yet: words that are no options are then still in `args`
    words = [str(ctx.params.get("slice_name") or ""), *(word for word in ctx.args if word[:1] != "-")]
    try:
        tenant = find(_tenants(), next(filter(None, words), ""))
    except NvcError:
        return []
    offers = [(str(device.index), device.name) for device in tenant.devices]
    return _items(offers + [(device.uuid, device.name) for device in tenant.devices], begun)


def _tenants() -> tuple[SliceStatus, ...]:
    from nvc.kernel import LinuxKernel
    from nvc.slices.store.status import statuses

    try:
        return statuses(LinuxKernel())[0]
    except (NvcError, OSError):
        return ()


def _items(offers: list[tuple[str, str]], begun: str) -> Items:
    return [CompletionItem(offer, help=text) for offer, text in offers if offer.startswith(begun)]


def script(shell: str, program: str) -> str:
    """What makes `shell` complete `program`, which is nvc-cli or nvidia-ctk by whatever name."""
    from nvc_cli.main import COMPLETE_VARIABLE, tree

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click cannot complete in {shell}")
    made = found(tree, {}, program, COMPLETE_VARIABLE)
    return str((BASH if shell == "bash" else made.source_template) % made.source_vars())


@click.command("completion", context_settings={"help_option_names": ["-h", "-?", "--help"]})
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete nvc-cli's commands, options and devices.

    \b
    bash: nvc-cli completion bash > /etc/bash_completion.d/nvc-cli
    zsh:  nvc-cli completion zsh > /usr/local/share/zsh/site-functions/_nvc-cli
    fish: nvc-cli completion fish > /etc/fish/completions/nvc-cli.fish
    """
    from nvc_cli.main import program_of

    output.write(script(shell, program_of(ctx)))
