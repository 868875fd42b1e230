# Sourced by gpu-tests and bench: installs nvc from this bundle into a directory of its own, removed at the end.
# Sets: work, interpreter; exports what the tests need.
[ "$(id -u)" = 0 ] || { echo "$(basename "$0"): run as root" >&2; exit 1; }

# Root runs only what belongs to root, whoever unpacked the bundle.
work=$(mktemp -d /var/lib/nvc-bundle.XXXXXX)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
"$bundle/install" "$work/prefix" >"$work/install.log" || { cat "$work/install.log" >&2; exit 1; }
interpreter=$(sed -n 's/^interpreter //p' "$work/prefix/lib/nvc/launch.conf")

cd "$work" # `python -m` looks for modules in the working directory first

export NVC_STAGE="$work/prefix" NVC_TOOLS="$bundle/tools" PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH="$bundle/tests/site:$bundle/tests:$work/prefix/lib/nvc/python"
for directory in "$work"/prefix/lib/nvc/site*; do PYTHONPATH=$PYTHONPATH:$directory; done
