#!/usr/bin/env bash
# Shell commands, in a clone of HEAD below /srv, in a path with a space, by clocks that began 100 seconds ago. What
# depends on a checkout's place or on a machine's age fails there. As root:
#
#     bash tests/support/elsewhere.sh [--busy] COMMAND...
#
# --busy: beside a busy loop on each processor. The first command that fails ends it, with its status.
set -euo pipefail
loops=0
if [ "$1" = --busy ]; then
    loops=$(nproc)
    shift
fi
repository=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p /srv
place=$(mktemp -d "/srv/some place XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$place"' EXIT
chmod 755 "$place"
# The repository may belong to somebody else; the clone belongs to root.
HOME=$place git config --global safe.directory '*'
HOME=$place git clone -q "$repository" "$place/nvc"
cd "$place/nvc"
for ((i = 0; i < loops; i++)); do
    (while :; do :; done) &
done
# The kernel takes offsets from its own clock, not from ours.
own=$(awk '$1 == "boottime" { print $2 }' /proc/self/timens_offsets)
since=$(awk -v own="$own" '{ print own + 100 - int($1) }' /proc/uptime)
for command; do
    began=$SECONDS
    unshare --time --monotonic="$since" --boottime="$since" --fork --kill-child bash -c "$command" </dev/null
    echo "== $command: passed after $((SECONDS - began)) s"
done
