"""The rights that the plugin's account needs, and why. Tests compare the plugin's requests with them."""

from __future__ import annotations

from nvc.base.value import Value


class Rule(Value):
    """Verbs on one resource of one group of the API."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str


RULES = (
    Rule(
        "resource.k8s.io",
        "resourceslices",
        ("list", "watch", "create", "update", "delete"),
        "publish the node's devices, and put back at once what others remove or change",
    ),
    Rule("resource.k8s.io", "resourceclaims", ("get",), "prepare claims, and forget those that are gone"),
    Rule("", "nodes", ("get",), "name the node as the owner of its slices, so that they go with it"),
)
