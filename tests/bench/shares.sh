#!/bin/sh
# shares.sh BIN WORK [ARGUMENTS OF sharing.py]: what tenants of a GPU get. BIN has nvc-cli and nvcd, WORK is
# tests/native/vgpu_work.c, compiled. In a mount namespace with a /run/nvc of its own, so that it disturbs no slices
# and several can run side by side, each with an NVC_BENCH_DEVICE of its own. On a host without a GPU: a few scenarios
# on a simulated one. Training steps follow where python3 has PyTorch.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ "${NVC_BENCH_APART-}" != yes ]; then
    NVC_BENCH_APART=yes exec unshare --mount --propagation private "$0" "$@"
fi
mkdir -p /run/nvc
mount -t tmpfs -o mode=700 none /run/nvc
bin=$1 work=$2
shift 2

if [ ! -e /proc/driver/nvidia/version ]; then
    root=$(mktemp -d)
    chmod 755 "$root" # nvcd asks NVML without rights
    trap 'rm -rf "$root"' EXIT
    "$bin/nvc-cli" sim create "$root/driver"
    [ $# -gt 0 ] || set -- --seconds 1 --only alone --only fixed --only weight --only arrival --only native
    NVC_BENCH_ROOT=$root/driver python3 "$here/sharing.py" --bin "$bin" --work "$work" "$@"
    echo "training.py: not run, there is no GPU"
    exit
fi
"$bin/nvc-cli" vgpu calibrate
python3 "$here/sharing.py" --bin "$bin" --work "$work" "$@"
if ! python3 -c 'import torch' 2>/dev/null; then
    echo "training.py: not run, python3 has no PyTorch"
    exit
fi
python3 "$here/training.py" --bin "$bin" --kind transformer --kind small
