"""`nvc-cli info`: the driver and its GPUs."""

from __future__ import annotations

from nvc.api import Driver
from nvc.base.errors import InputError
from nvc.kernel import privileges
from nvc.plan import listing
from nvc_cli import arguments, output
from nvc_cli.options import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc_cli.boot import Session


def run(session: Session) -> None:
    """Print what discovery finds. Raises NvcError."""
    values = session.words.values
    form = arguments.choice(values, "format", FORMATS)
    if arguments.flag(values, "csv"):
        if "format" in values:
            raise InputError("--csv", cause="not together with --format")
        form = "csv"
    options = arguments.driver_options(session.globals, own_ids=True)

    privileges.reduce("info", options.load_kmods)
    facts = Driver(options, log=session.log).facts
    if facts.simulated:
        output.say(session.program, f"simulated driver in {facts.driver_root}: these GPUs are not real")
    output.warn(session.program, facts.warnings)
    text = listing.info_csv if form == "csv" else listing.info_text
    output.show(
        form,
        lambda: listing.info_document(facts),
        lambda width: listing.info_table(facts, width),
        lambda: text(facts),
    )
