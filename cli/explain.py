"""`nvc-cli explain`: what the code of an error means."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from nvc.base.columns import fitted
from nvc.doctor import codes
from nvc_cli import output
from nvc_cli.main import command, format_option


def _codes(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    known = [found for found in codes.EXPLANATIONS if found.code.startswith(begun.upper())]
    return [CompletionItem(found.code, help=found.meaning) for found in known]


@command("explain", "nvc-cli explain NVC-1201", "nvc-cli explain")
@click.argument("code", metavar="[CODE]", required=False, shell_complete=_codes)
@format_option("text", "table")
def explain(code: str | None, form: str) -> None:
    """Explain an error: its common causes, related checks and remedies.

    Every error ends with its code. Without CODE, all codes are listed.
    """
    chosen = (codes.explain(code),) if code is not None else codes.EXPLANATIONS
    rows = [("CODE", "STAGE", "MEANING"), *((one.code, one.stage, one.meaning) for one in chosen)]
    text = "".join(f"{found.code}  {found.meaning}\n" for found in chosen)
    output.show(
        form,
        lambda: {"schemaVersion": 1, "errors": [vars(found) for found in chosen]},
        lambda width: fitted(rows, width),
        lambda: text if code is None else codes.text_of(chosen[0]),
    )
