"""Where this machine's packages come from."""

from __future__ import annotations

from . import run


def mirror() -> tuple[str, str, str]:
    """This machine's own release, where its packages come from, and which parts of it are used."""
    with open("/etc/os-release", encoding="utf-8") as file:
        facts = dict(line.rstrip().split("=", 1) for line in file if "=" in line)
    release = facts["VERSION_CODENAME"].strip('"')
    columns = "$(RELEASE) $(COMPONENT) $(REPO_URI)"
    targets = run("apt-get", "indextargets", "--format", columns, "Created-By: Packages").stdout.splitlines()
    uri = next(line.split()[2] for line in targets if line.startswith(f"{release} main "))
    parts = {
        line.split()[1] for line in targets if line.startswith(f"{release} ") and line.endswith(f" {uri}")
    }
    return release, uri, ",".join(sorted(parts))
