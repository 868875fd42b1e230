"""`nvc-cli explain`: what the code of an error means."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from nvc.columns import fitted
from nvc_cli import output
from nvc_cli.main import command, format_option


def _codes(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    from nvc.doctor.codes import EXPLANATIONS

    return [
        CompletionItem(found.code, help=found.meaning)
        for found in EXPLANATIONS
        if found.code.startswith(begun.upper())
    ]


@command("explain", "nvc-cli explain NVC-1201", "nvc-cli explain")
@click.argument("code", metavar="[CODE]", required=False, shell_complete=_codes)
@format_option("text", "table")
def explain(code: str | None, form: str) -> None:
    """Explain an error: its common causes, related checks and remedies.

    Every error ends with its code. Without CODE, all codes are listed.
    """
    from nvc.doctor import codes

    chosen = (codes.explain(code),) if code is not None else codes.EXPLANATIONS
    if form in ("json", "yaml"):
        errors = [{name: getattr(found, name) for name in found._fields} for found in chosen]
        output.write(output.document_text({"schemaVersion": 1, "errors": errors}, form))
    elif form == "table":
        rows = [
            ("CODE", "STAGE", "MEANING"),
            *((found.code, found.stage, found.meaning) for found in chosen),
        ]
        output.write(output.emphasised(fitted(rows, output.columns())))
    elif code is not None:
        output.write(codes.text_of(chosen[0]))
    else:
        output.write("".join(f"{found.code}  {found.meaning}\n" for found in chosen))
