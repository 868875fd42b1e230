"""`nvc-cli explain`: what the code of an error means."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from nvc_cli import output
from nvc_cli.main import CONTEXT


def _codes(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    from nvc.doctor.codes import EXPLANATIONS

    return [
        CompletionItem(found.code, help=found.meaning)
        for found in EXPLANATIONS
        if found.code.startswith(begun.upper())
    ]


@click.command(
    "explain",
    context_settings=CONTEXT,
    epilog="\b\nExamples:\n  nvc-cli explain NVC-1201\n  nvc-cli explain",
)
@click.argument("code", metavar="[CODE]", required=False, shell_complete=_codes)
@click.option("--format", "form", default="text", show_default=True, type=click.Choice(("text", "json")))
def explain(code: str | None, form: str) -> None:
    """Say what an error means: common causes, the check that looks into it, the remedy.

    The code stands at the end of each error. Without one, all are listed.
    """
    from nvc.doctor import codes

    chosen = (codes.explain(code),) if code is not None else codes.EXPLANATIONS
    if form == "json":
        rows = [{name: getattr(found, name) for name in found._fields} for found in chosen]
        output.write(output.json_text({"schemaVersion": 1, "errors": rows}))
    elif code is not None:
        output.write(codes.text_of(chosen[0]))
    else:
        output.write("".join(f"{found.code}  {found.meaning}\n" for found in chosen))
