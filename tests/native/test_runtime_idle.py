"""What the launcher takes for a container that asks for nothing, Python takes for one too, whatever is written."""

from __future__ import annotations

import ctypes
import json
import os

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import REPO, examples, need, run
from support.builds import kept

from nvc.base import fastjson
from nvc.base.errors import InputError
from nvc.base.files import closing
from nvc.frontends.runtime.choice import choose
from nvc.request.config import Config, ConfigError
from nvc.request.config.file import parse
from nvc.request.oci import MAX_CONFIG, Malformed, container_of


def build(directory: str) -> str:
    library = os.path.join(directory, "idle.so")
    source = os.path.join(REPO, "native/launcher/runtime/idle.c")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", f"-I{REPO}/native/launcher")
    run(need("gcc"), *flags, "-o", library, source)
    return library


@pytest.fixture(scope="module")
def idle() -> ctypes.CDLL:
    library = ctypes.CDLL(kept("idle", build))
    for function in (library.asks_for_nothing, library.settings_are_usual):
        function.restype, function.argtypes = ctypes.c_bool, [ctypes.c_char_p]
    return library


#: Names and values that ask, parts of them, and what is beside them.
NAMES = ["NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "ALIYUN_COM_GPU_VISIBLE_DEVICES", "ALIYUN_COM_GPU_MEM_CONTAINER",
         "PATH", "NVIDIA_REQUIRE_CUDA", "nvidia_visible_devices", "NVIDIA_IMEX_CHANNELS", "A", ""]  # fmt: skip
VALUES = ["all", "0", "5", "12.0", "void", "none", "", "<&>", "\u2028", "nvidia.com/gpu=0", "\\u0041"]
DIRECTORY = "/var/run/nvidia-container-devices"
PLACES = [
    f"{DIRECTORY}/0",
    f"{DIRECTORY}/cdi/nvidia.com/gpu/0",
    f"/var//run/./{DIRECTORY[9:]}/all",
    "/dev/null",
    "/x",
]


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A bundle's configuration, some of its letters as escapes."""
    pairs = draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=3))
    mounts = [
        {"source": "/dev/null", "destination": place}
        for place in draw(st.lists(st.sampled_from(PLACES), max_size=2))
    ]
    document = {
        "ociVersion": "1.0.2", "process": {"env": [f"{name}={value}" for name, value in pairs]},
        "root": {"path": "r"}, "mounts": mounts, "annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"},
    }  # fmt: skip
    text = json.dumps(document, ensure_ascii=draw(st.booleans()))
    for letter in draw(st.lists(st.sampled_from("IUnd<>&/"), max_size=2)):
        code = f"{ord(letter):04x}"
        text = text.replace(letter, "\\u" + (code.upper() if draw(st.booleans()) else code))
    return text


@given(text=documents())
@settings(max_examples=examples(2000), deadline=None)
def test_no_container_that_asks_is_passed_over(idle: ctypes.CDLL, text: str) -> None:
    with closing(os.memfd_create("config")) as fd:
        os.write(fd, text.encode())
        nothing = idle.asks_for_nothing(f"/proc/self/fd/{fd}".encode())
    try:
        container = container_of(fastjson.parse(text.encode(), MAX_CONFIG), "/b")
    except (fastjson.JsonError, Malformed):
        assume(False)
    for config in (Config(), Config(accept_volume_mounts=True)):
        try:
            asks = choose(container, config, []) is not None
        except InputError:
            asks = True
        assert not (nothing and asks)


TABLES = [
    "",
    "[nvc]\n",
    "[nvidia-container-cli]\n",
    "[nvidia-container-runtime]\n",
    '["nvidia-container-runtime"]\n',
]
SETTINGS = [
    "", "# mode = 'cdi'", 'mode = "auto"', "mode = 'auto'", 'mode = "cdi"', 'mode="jit-cdi"', 'mode = "auto" # or',
    '"mode" = "cdi"', "mode", '  mode\t=\t"cdi"', 'debug = "/d"', 'log = "/l"', "log-level = 'info'",
    'swarm-resource = "X"', "timeout = 3", 'nvidia-container-runtime.mode = "cdi"',
    'nvidia-container-runtime = {mode = "cdi"}', 'runtimes = ["runc"]', "runtimes = [", '"runc"]', "]",
    'root = """', '"""', "root = '''", "'''", "disable-require = true", "\r", "\\",
]  # fmt: skip
LINES = st.builds(str.__add__, st.sampled_from(TABLES), st.sampled_from(SETTINGS))


@given(lines=st.lists(LINES, max_size=4))
@settings(max_examples=examples(4000), deadline=None)
def test_no_setting_by_which_others_ask_is_passed_over(idle: ctypes.CDLL, lines: list[str]) -> None:
    text = "\n".join(lines)
    usual = idle.settings_are_usual(text.encode())
    try:
        config = parse(text.encode(), "/etc/nvc/config.toml")
    except ConfigError:
        return
    if usual:
        assert (config.mode, config.swarm_resource) == ("auto", ())
        assert not (config.log or config.cli_debug or config.runtime_debug)


def test_the_default_settings_are_usual(idle: ctypes.CDLL) -> None:
    with open(os.path.join(REPO, "packaging/config.toml"), "rb") as file:
        assert idle.settings_are_usual(file.read())
