"""The control plane, and the cluster as a whole."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import ssl
import subprocess
import urllib.request
from types import TracebackType
from typing import Any

from .. import need, run, until
from . import images, node
from .binaries import programs
from .processes import end, remove_group
from .state import CONTAINERD, State, write

CONTROLLERS = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"


class Cluster:
    """A running cluster. `runtime` is that of the nodes: "containerd" or "crio"."""

    def __init__(self, directory: str, nodes: int = 1, runtime: str = CONTAINERD) -> None:
        self.directory = os.path.realpath(directory)
        self.count = nodes
        self.state = State(self.directory, "", runtime)

    @classmethod
    def running(cls, directory: str) -> Cluster:
        """A cluster that another process started. Raises FileNotFoundError."""
        cluster = cls(directory)
        cluster.state = State.load(cluster.directory)
        return cluster

    def __enter__(self) -> Cluster:
        try:
            self.up()
        except BaseException:
            if "NVC_KEEP_CLUSTER" not in os.environ:
                self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # Start and end

    def up(self) -> None:
        """Start everything, and wait until all nodes are Ready."""
        os.makedirs(self.directory, exist_ok=True)
        self.state = State(self.directory, programs(), self.state.runtime, token=os.urandom(16).hex())
        self.state.number = next(k for k in range(1, 255) if self._take(f"10.96.{k}.1"))
        self.state.addresses.append(self.state.address)
        self.state.save()
        names = [f"node{i + 1}" for i in range(self.count)]
        self._accounts(names)
        self._etcd()
        self._api_server()
        for index in range(1, self.count + 1):
            node.runtime(self.state, node.make(self.state, index))
        self._until(lambda: self.get("/readyz", raw=True) == "ok", "the API server")
        self._controllers()
        for name in names:
            node.kubelet(self.state, self.state.nodes[name])
        base = images.base(f"{self.directory}/images")
        for archive in base:
            self.load(archive)
        self._until(lambda: len(self._ready()) == self.count, "all nodes Ready")
        # The API server refuses pods until the namespace has its account.
        self._until(lambda: self.get("/api/v1/namespaces/default/serviceaccounts/default"), "the account")

    def down(self) -> None:
        """End every process, and remove what was made, the directory too."""
        end(dict(self.state.processes.values()))
        for child in self.state.children:
            child.wait()
        for each in self.state.nodes.values():
            remove_group(each.cgroup)
            node.remove(self.state, each)
        for address in self.state.addresses:
            run("ip", "addr", "del", f"{address}/32", "dev", "lo", check=False)
        for path in self.state.made:
            with contextlib.suppress(OSError):  # somebody else's by now
                os.rmdir(path)
        shutil.rmtree(self.directory)

    @staticmethod
    def _take(address: str) -> bool:
        """Whether the address was free, and is on lo now."""
        return run(need("ip"), "addr", "add", f"{address}/32", "dev", "lo", check=False).returncode == 0

    def _accounts(self, nodes: list[str]) -> None:
        users = [("admin", "system:masters"), (CONTROLLERS, ""), (SCHEDULER, "")]
        users += [(f"system:node:{name}", "system:nodes") for name in nodes]
        pki = f"{self.directory}/pki"
        write(f"{pki}/sa.key", run(need("openssl"), "genrsa", "2048").stdout, 0o600)
        with open(f"{pki}/tokens.csv", "w", encoding="ascii") as out:
            for user, group in users:
                token = self.state.token if user == "admin" else os.urandom(16).hex()
                csv.writer(out).writerow([token, user, user, group])
                self._kubeconfig(self.kubeconfig if user == "admin" else f"{pki}/{user}.conf", token)

    @property
    def kubeconfig(self) -> str:
        """The path of the administrator's."""
        return f"{self.directory}/kubeconfig"

    def _kubeconfig(self, path: str, token: str) -> None:
        authority = f"{self.directory}/pki/apiserver.crt"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "clusters": [
                {"name": "c", "cluster": {"server": self.state.url, "certificate-authority": authority}}
            ],
        }
        write(path, json.dumps(document), 0o600)

    def _etcd(self) -> None:
        client, peer = f"http://{self.state.address}:2379", f"http://{self.state.address}:2380"
        words = [f"--data-dir={self.directory}/etcd", "--unsafe-no-fsync"]
        words += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        words += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        words += [f"--initial-cluster=default={peer}"]
        self.state.start("etcd", [self.state.program("etcd"), *words])

    def _api_server(self) -> None:
        """Start it, or start it again."""
        pki = f"{self.directory}/pki"
        words = [
            f"--etcd-servers=http://{self.state.address}:2379",
            f"--bind-address={self.state.address}",
            "--secure-port=443",
            f"--advertise-address={self.state.address}",
            f"--service-cluster-ip-range=10.96.{self.state.number}.0/24",
            f"--cert-dir={pki}",
            f"--token-auth-file={pki}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki}/sa.key",
            f"--service-account-signing-key-file={pki}/sa.key",
        ]
        self.state.start("kube-apiserver", [self.state.program("kube-apiserver"), *words])

    def _controllers(self) -> None:
        pki = f"{self.directory}/pki"
        for name, user in (("kube-controller-manager", CONTROLLERS), ("kube-scheduler", SCHEDULER)):
            conf = f"{pki}/{user}.conf"
            words = [
                self.state.program(name),
                "--leader-elect=false",
                f"--bind-address={self.state.address}",
                f"--kubeconfig={conf}",
                f"--authentication-kubeconfig={conf}",
                f"--authorization-kubeconfig={conf}",
                f"--cert-dir={pki}/{name}",
            ]
            if user == CONTROLLERS:
                words += [f"--service-account-private-key-file={pki}/sa.key"]
                words += [f"--root-ca-file={pki}/apiserver.crt", "--use-service-account-credentials"]
            self.state.start(name, words)

    def _until(self, found: Any, what: str) -> None:
        def tried() -> Any:
            self.state.must_run()
            try:
                return found()
            except OSError:  # nobody listens yet, or an HTTP error
                return None

        until(tried, lambda: f"{what}: not there; see {self.directory}/log")

    def _ready(self) -> list[str]:
        return [
            item["metadata"]["name"]
            for item in self.get("/api/v1/nodes")["items"]
            for condition in item["status"].get("conditions", ())
            if (condition["type"], condition["status"]) == ("Ready", "True")
        ]

    # Daemons of a running cluster

    def kill(self, name: str) -> None:
        """Kill a daemon by its name in DIRECTORY/log, such as "node1-kubelet"."""
        pid, when = self.state.processes[name]
        end({pid: when})

    def start_kubelet(self, name: str) -> None:
        node.kubelet(self.state, self.state.nodes[name])

    def start_api_server(self) -> None:
        self._api_server()
        self._until(lambda: self.get("/readyz", raw=True) == "ok", "the API server")

    # Use

    def get(self, path: str, raw: bool = False) -> Any:
        """What the API server answers to a GET by the administrator. Raises OSError."""
        context = ssl.create_default_context(cafile=f"{self.directory}/pki/apiserver.crt")
        request = urllib.request.Request(
            self.state.url + path, headers={"Authorization": f"Bearer {self.state.token}"}
        )
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=20) as answer:
            text = answer.read().decode()
        return text if raw else json.loads(text)

    @property
    def environment(self) -> dict[str, str]:
        """For kubectl and helm, as the administrator."""
        home = {"HOME": self.directory, "KUBECONFIG": self.kubeconfig}
        return {**self.state.environment, **home}

    def kubectl(self, *words: str, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator; `input` is its standard input."""
        return self.sh([self.state.program("kubectl"), *words], check, **options)

    def sh(self, words: list[str], check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program with the cluster's programs in PATH and the administrator's KUBECONFIG."""
        if "input" in options:
            options["stdin"] = None
        return run(*words, check=check, env=self.environment, **options)

    def inside(self, name: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in a node's mounts."""
        return node.inside(self.state, self.state.nodes[name], list(words), check)

    def load(self, archive: str) -> None:
        """Give every node the images of an OCI archive."""
        for each in self.state.nodes.values():
            node.load(self.state, each, os.path.abspath(archive))
