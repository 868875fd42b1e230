"""tests/features.md: each row of its tables has an answer, and names a test. docs/clients.md is what tests tell."""

from __future__ import annotations

import ast
import glob
import os
import re

from support import REPO, clients
from support.clientdebs import CLIENTS
from support.generations import GO
from support.sources import tree

with open(os.path.join(REPO, "tests/features.md"), encoding="utf-8") as page:
    TEXT = page.read()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| ---") and not line.endswith("| tried by |")
]


def test_each_row() -> None:
    for feature, answer, tried in ROWS:
        assert feature and answer, feature
        named = re.fullmatch(r"`([a-z]+/test_\w+\.py)::(test_\w+)`", tried)
        assert named is not None, tried
        with open(os.path.join(REPO, "tests", named[1]), encoding="utf-8") as file:
            assert re.search(rf"^def {named[2]}\(", file.read(), re.MULTILINE), tried


def test_no_feature_is_missing() -> None:
    """Every name by which HAMi and cGPU are told something."""
    names = """CUDA_DEVICE_MEMORY_LIMIT CUDA_DEVICE_SM_LIMIT CUDA_DEVICE_MEMORY_SHARED_CACHE CUDA_TASK_PRIORITY
        GPU_CORE_UTILIZATION_POLICY RECORD_KERNEL_INTERVAL ACTIVE_OOM_KILLER LIBCUDA_LOG_LEVEL CUDA_REDIRECT
        CUDA_OVERSUBSCRIBE CUDA_DISABLE_CONTROL overrideEnv shrreg-tool nvidia.com/gpumem nvidia.com/gpucores
        ALIYUN_COM_GPU_MEM_DEV ALIYUN_COM_GPU_MEM_CONTAINER ALIYUN_COM_GPU_VISIBLE_DEVICES CGPU_DISABLE
        ALIYUN_COM_GPU_SCHD_WEIGHT inst_ctl default_memsize max_inst free_weight meminfo memsize"""
    assert [name for name in names.split() if name not in TEXT] == []
    assert len(ROWS) > 70


def test_the_page_of_clients_is_what_tests_tell() -> None:
    """Each client of a test is there, ran in a version that is still wanted, and no other is."""
    ran = clients.on_page()
    assert clients.page()[1] == clients.table(ran), "run `make clients`"
    assert all(ran.values()), ran
    told = clients.calls()
    said = {client: words[1] for client, (words, *_) in told.items()}
    revisions = {client: word.value for client, word in said.items() if isinstance(word, ast.Constant)}
    assert {client: [*ran[client]] for client in revisions} == {name: [one] for name, one in revisions.items()}
    pins = {name: next(iter(client.packages.values())) for name, client in CLIENTS.items()}
    pins["docker"] = re.findall("Version=([0-9.]+)", GO["dockerd"][4])[0].rpartition(".")[0]
    for client in told:
        if pin := pins.get(client.lower()):
            assert max(map(clients.numbers, ran[client])) >= clients.numbers(pin)[:2], f"{client} {pin}"
    tests = glob.glob("tests/engines/test_client_*.py", root_dir=REPO)
    assert not [path for path in tests if "client_ran(" not in ast.unparse(tree(path))]
