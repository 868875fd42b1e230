"""Makes the Helm chart, and from it the plain manifest: DIRECTORY/nvc-VERSION.tgz and DIRECTORY/nvc.yaml.

    chart.py DIRECTORY [--version VERSION] [--image REPOSITORY] [--helm PROGRAM]

The chart is packed without Helm, the same bytes each time; the manifest is what `helm template` makes of it for a
cluster with dynamic resource allocation, in the namespace `nvc`. Both are of nvc's own version by default.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import shutil
import subprocess
import tarfile

import package
import share
import shim
import tree

CHART = os.path.join(tree.REPO, "packaging/kubernetes/chart")
NAMESPACE = "nvc"
#: The cluster that the manifest is for.
KUBERNETES = ("--kube-version=1.36.0", "--api-versions=resource.k8s.io/v1")


def files(version: str, image: str) -> dict[str, bytes]:
    """The chart's files by their names in the archive, for a version of nvc and of its image."""
    found = {}
    for path, names, leaves in os.walk(CHART):
        names.sort()
        for leaf in sorted(leaves):
            full = os.path.join(path, leaf)
            found[f"nvc/{os.path.relpath(full, CHART)}"] = share.read(full)
    for name, old, new in (
        ("nvc/Chart.yaml", "0.0.0", version),
        ("nvc/values.yaml", "repository: localhost/nvc\n", f"repository: {image}\n"),
    ):
        text = found[name].decode()
        if old not in text:
            raise SystemExit(f"chart: {name} has no {old!r}")
        found[name] = text.replace(old, new).encode()
    return found


def pack(found: dict[str, bytes], when: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, data in sorted(found.items()):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = len(data), when
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def manifest(helm: str, chart: str) -> bytes:
    """What `helm template` makes of the chart, with the namespace that it goes into."""
    words = [helm, "template", "nvc", chart, "--namespace", NAMESPACE, *KUBERNETES]
    done = subprocess.run(words, check=False, capture_output=True)
    if done.returncode:
        raise SystemExit(f"chart: {' '.join(words)}: {done.stderr.decode().strip()}")
    labels = "labels:\n    # The plugin and nvcd are privileged: see docs/security.md.\n"
    labels += "    pod-security.kubernetes.io/enforce: privileged\n"
    head = f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  {labels}"
    return head.encode() + done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the Helm chart and the plain manifest.")
    parser.add_argument("directory")
    parser.add_argument("--version", default="", help="default: nvc's own")
    parser.add_argument("--image", default="localhost/nvc", help="where nodes pull the image from")
    parser.add_argument("--helm", default="helm", help="the program that makes the manifest")
    options = parser.parse_args()
    version = options.version or shim.own_version()
    chart = os.path.join(options.directory, f"nvc-{version}.tgz")
    share.write(chart, pack(files(version, options.image), package.source_date()))
    print(os.path.relpath(chart))
    helm = shutil.which(options.helm)
    if helm is None:
        raise SystemExit(f"chart: no {options.helm}, which makes the manifest: install Helm 3, or make HELM=PATH")
    share.write(os.path.join(options.directory, "nvc.yaml"), manifest(helm, chart))
    print(os.path.relpath(os.path.join(options.directory, "nvc.yaml")))


if __name__ == "__main__":
    main()
