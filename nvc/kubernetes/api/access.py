"""Where the API server is: by the service account of a pod, or by a file that kubectl would take."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from typing import Any

from nvc.base.errors import InputError
from nvc.base.yamlread import YamlError, parse_yaml
from nvc.discovery.containers.files import table as _table
from nvc.kubernetes.api.client import Server

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_FILE_MAX = 1 << 20


def in_cluster(environment: dict[str, str], directory: str = ACCOUNT) -> Server:
    """By the account of the pod that this process is in. Raises InputError outside of a pod."""
    host, port = (
        environment.get("KUBERNETES_SERVICE_HOST", ""),
        environment.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    if not host or not port.isdigit():
        raise InputError(
            "find API server", "", "this is no pod of Kubernetes: KUBERNETES_SERVICE_HOST is not set",
            "outside of one, name a file with --kubeconfig",
        )  # fmt: skip
    return Server(host, int(port), _context(f"{directory}/ca.crt"), lambda: _token(f"{directory}/token"))


def by_kubeconfig(path: str) -> Server:
    """By the current context of a file. Raises InputError naming what of it cannot be used."""
    try:
        config = parse_yaml(_read(path).decode())
    except (YamlError, UnicodeDecodeError) as error:
        raise _unusable(path, f"not YAML that is understood: {error}") from None
    context = _named(config, path, "contexts", "context", str(_table(config).get("current-context") or ""))
    cluster = _named(config, path, "clusters", "cluster", str(context.get("cluster") or ""))
    user = _named(config, path, "users", "user", str(context.get("user") or ""))
    base = os.path.dirname(os.path.abspath(path))
    scheme, _, rest = str(cluster.get("server") or "").partition("://")
    host, _, port = rest.rstrip("/").rpartition(":") if ":" in rest.rpartition("]")[2] else (rest, "", "443")
    if scheme != "https" or not host or "/" in host or not port.isdigit():
        raise _unusable(path, f"server {scheme}://{rest}: want https://HOST:PORT")
    if cluster.get("insecure-skip-tls-verify"):
        raise _unusable(path, "insecure-skip-tls-verify is not obeyed: name the authority")
    authority = _bytes(cluster, "certificate-authority", base, path)
    tls = _context(path, authority)
    certificate, key = _bytes(user, "client-certificate", base, path), _bytes(user, "client-key", base, path)
    if certificate:
        _load_pair(tls, certificate, key, path)
    token, file = str(user.get("token") or ""), str(user.get("tokenFile") or "")
    if not (certificate or token or file):
        raise _unusable(path, "its user has neither a certificate nor a token")
    tokens = (lambda: _token(os.path.join(base, file))) if file else (lambda: token)
    return Server(host.strip("[]"), int(port), tls, tokens)


def _unusable(path: str, cause: str) -> InputError:
    return InputError("--kubeconfig", path, cause, "`kubectl --kubeconfig FILE config view` shows what it says")


def _context(path: str, data: bytes | None = None) -> ssl.SSLContext:
    """With the authorities in the file `path`; with those in `data`, b"" for the system's, that `path` names."""
    try:
        text = data.decode("ascii") if data else None
        return ssl.create_default_context(cafile=path if data is None else None, cadata=text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("read certificate authority", path, error, "want certificates in PEM") from None


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, path: str) -> None:
    """The library takes files alone; these are in memory and gone afterwards."""
    with tempfile.NamedTemporaryFile() as one, tempfile.NamedTemporaryFile() as other:
        one.write(certificate)
        other.write(key)
        one.flush()
        other.flush()
        try:
            context.load_cert_chain(one.name, other.name)
        except OSError as error:
            raise _unusable(path, f"client certificate: {error}") from None


def _token(path: str) -> str:
    return _read(path).decode("ascii", "replace").strip()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_FILE_MAX)
    except OSError as error:
        raise InputError.of("read", path, error) from None


def _named(config: object, path: str, kind: str, field: str, name: str) -> dict[str, Any]:
    entries = _table(config).get(kind)
    for entry in entries if isinstance(entries, list) else ():
        if _table(entry).get("name") == name:
            return _table(entry.get(field))
    raise _unusable(path, f"{kind} has no {name or 'name for the current context'}")


def _bytes(table: dict[str, Any], name: str, base: str, path: str) -> bytes:
    """What a field has, itself or as a file; nothing where there is neither."""
    data = table.get(f"{name}-data")
    if data:
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error as error:
            raise _unusable(path, f"{name}-data: {error}") from None
    file = str(table.get(name) or "")
    return _read(os.path.join(base, file)) if file else b""
