"""`nvc-cli list`: the files that a container needs, one a line."""

from __future__ import annotations

from nvc.api import Driver
from nvc.kernel import privileges
from nvc.plan import listing
from nvc_cli import arguments, output
from nvc_cli.options import FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc_cli.boot import Session
    from nvc_cli.parse import Words


def run(session: Session) -> None:
    """Print what was asked for. Raises NvcError."""
    form = arguments.choice(session.words.values, "format", FORMATS)
    values = session.words.values
    if asks_for_everything(session.words):
        values = dict.fromkeys(("libraries", "binaries", "ipcs", "firmwares", "compat32"), True)
        values |= {"device": ["all"], "imex_channel": arguments.texts(session.words.values, "imex_channel")}
    request = arguments.request(values)
    options = arguments.driver_options(session.globals, request.imex_channels, own_ids=True)
    kinds = [name for name in ("binaries", "libraries", "ipcs", "firmwares") if arguments.flag(values, name)]
    if "device" in values:
        kinds.append("devices")

    privileges.reduce("list", options.load_kmods)
    driver = Driver(options, log=session.log)
    facts = driver.facts
    entries = driver.entries(request, tuple(kinds))
    output.warn(session.program, facts.warnings)
    output.show(
        form,
        lambda: listing.list_document(facts, entries),
        lambda width: listing.list_table(entries, width),
        lambda: listing.list_text(entries),
    )


def asks_for_everything(words: Words) -> bool:
    """No options, or just `--imex-channel=N` in one word (nvidia-container-cli's rule); --format does not count."""
    given = [(name, count) for name, count in words.given if name != "format"]
    return not given or given == [("imex_channel", 1)]
