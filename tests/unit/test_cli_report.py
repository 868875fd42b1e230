"""What info and list print, byte for byte where the peers' callers parse it."""

from __future__ import annotations

import json

from support.facts import CAPABILITIES, LIBS, VERSION, cap, facts, gpu

from nvc.model.facts import Binary
from nvc.model.request import Request
from nvc.model.selection import select
from nvc.plan import listing

T4 = gpu(
    0,
    "GPU-08f3a2f0-0000-0000-0000-000000000000",
    minor=0,
    bus_id="00000000:3b:00.0",
    name="Tesla T4",
    brand="Tesla",
    architecture="7.5",
)
SMALL = facts(driver_version="535.104.05", cuda_version="12.2", gpus=(T4,))
KINDS = ("devices", "binaries", "libraries", "ipcs", "firmwares")
CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]


def listed(request: Request, *kinds: str, host: object = None) -> list[str]:
    """The lines of `list`."""
    found = host or facts()
    return listing.list_text(listing.entries(found, select(found, request), request, kinds)).splitlines()  # type: ignore[arg-type]


def test_info_text() -> None:
    assert listing.info_text(SMALL) == (
        "NVRM version:   535.104.05\n"
        "CUDA version:   12.2\n"
        "\n"
        "Device Index:   0\n"
        "Device Minor:   0\n"
        "Model:          Tesla T4\n"
        "Brand:          Tesla\n"
        "GPU UUID:       GPU-08f3a2f0-0000-0000-0000-000000000000\n"
        "Bus Location:   00000000:3b:00.0\n"
        "Architecture:   7.5\n"
    )


def test_info_csv() -> None:
    assert listing.info_csv(SMALL) == (
        "NVRM version,CUDA version\n"
        "535.104.05,12.2\n"
        "\n"
        "Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture\n"
        "0,0,Tesla T4,Tesla,GPU-08f3a2f0-0000-0000-0000-000000000000,00000000:3b:00.0,7.5\n"
    )
    comma = facts(gpus=(T4.replace(name='T4, "big"'),))
    assert (
        listing.info_csv(comma).splitlines()[-1].startswith('0,0,T4, "big",Tesla,')
    )  # no quoting, as the peers


def test_a_hostile_name_stays_on_its_line() -> None:
    host = SMALL.replace(gpus=(T4.replace(name="T4\nGPU UUID:       GPU-1\x1b[2J" + "x" * 9999),))
    for show in (listing.info_text, listing.info_csv, listing.info_table):
        text = show(host)
        assert len(text.splitlines()) == len(show(SMALL).splitlines())
        assert "\x1b" not in text
        assert len(text) < 1000


def test_everything_in_the_peers_order() -> None:
    request = Request(devices=("all",), capabilities=("compat32",), imex_channels=(5,))
    access = [f"{CAPABILITIES}/gpu2/mig/gi1/access", f"{CAPABILITIES}/gpu2/mig/gi1/ci0/access"]
    other = [path.replace("gi1", "gi2") for path in access]
    assert listed(request, *KINDS) == [
        *CONTROL,
        "/dev/nvidia1",
        "/dev/nvidia2",
        *access,
        cap(100).path,
        cap(101).path,
        *other,
        cap(110).path,
        cap(111).path,
        "/dev/nvidia-caps-imex-channels/channel5",
        "/usr/bin/nvidia-smi",
        f"{LIBS}/libnvidia-ml.so.{VERSION}",
        f"{LIBS}/libcuda.so.{VERSION}",
        f"/usr/lib/i386-linux-gnu/libcuda.so.{VERSION}",
        "/run/nvidia-persistenced/socket",
        "/run/nvidia-fabricmanager/socket",
        "/tmp/nvidia-mps",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
    ]


def test_mig_rights_replace_mig_devices() -> None:
    def right(name: str, node: int) -> list[str]:
        return [
            f"{CAPABILITIES}/mig/{name}",
            cap(node).path,
            f"{CAPABILITIES}/gpu2",
            "/dev/nvidia-caps",
            cap(100).path,
            cap(101).path,
        ]

    both = Request(devices=("all",), mig_config="all", mig_monitor="all")
    nodes = [*CONTROL, "/dev/nvidia1", "/dev/nvidia2"]
    assert listed(both, "devices") == [*nodes, *right("config", 1), *right("monitor", 2)]
    assert listed(Request(devices=("all",), mig_config="all"), "devices") == [*nodes, *right("config", 1)]
    assert listed(Request(devices=("all",), mig_monitor="all"), "devices") == [*nodes, *right("monitor", 2)]
    # GPU 0 cannot do MIG: there is nothing to configure.
    assert listed(Request(devices=("0",), mig_config="all"), "devices") == [*CONTROL, "/dev/nvidia1"]


def test_names_keep_their_bytes_but_not_their_lines() -> None:
    host = facts(binaries=(Binary("/usr/bin/a\nb\udcff", "utility", facts().binaries[0].identity),))
    assert listed(Request(), "binaries", host=host) == ["/usr/bin/a?b\udcff"]


def test_list_document_and_table() -> None:
    host, request = facts(), Request(devices=("0",), imex_channels=(5,))
    entries = listing.entries(host, select(host, request), request, KINDS)
    made = json.loads(json.dumps(listing.list_document(host, entries)))
    assert list(made) == ["schemaVersion", "driver", "entries", "warnings"]
    by_kind = {entry["kind"]: entry for entry in made["entries"]}
    assert by_kind == {
        "device": {"kind": "device", "path": "/dev/nvidia1", "major": 195, "minor": 1},
        "imex-channel": {
            "kind": "imex-channel",
            "path": "/dev/nvidia-caps-imex-channels/channel5",
            "major": 236,
            "minor": 5,
        },
        "binary": {"kind": "binary", "path": "/usr/bin/nvidia-smi", "class": "utility"},
        "library": {
            "kind": "library",
            "path": f"{LIBS}/libcuda.so.{VERSION}",
            "class": "compute",
            "soname": "libcuda.so.1",
            "architecture": "x86_64",
        },
        "ipc": {"kind": "ipc", "path": "/tmp/nvidia-mps", "service": "mps"},
        "firmware": {"kind": "firmware", "path": f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"},
    }
    lines = listing.list_table(entries, 100).splitlines()
    assert lines[0].split() == ["KIND", "PATH", "DETAIL"]
    assert len(lines) == len(entries) + 1
    assert max(map(len, lines)) <= 100
    assert any(line.split() == ["device", "/dev/nvidia1", "c", "195:1"] for line in lines)
