"""Errors of the kubelet plugin."""

from __future__ import annotations

from nvc.base.errors import NvcError

#: Statuses of HTTP that the API server gives.
MISSING, CONFLICT, GONE = 404, 409, 410


class ClaimError(NvcError):
    """A claim, or a device that kubelet asks for, cannot be prepared. The text is shown in an event of the pod."""

    code = "NVC-2401"
    stage = "kubernetes"
    hint = "delete the pod: its claim is allocated again"


class ApiError(NvcError):
    """The API server refuses a request, or cannot be reached. `status` is that of HTTP; 0: no answer."""

    code = "NVC-2402"
    stage = "kubernetes"
    hint = "the request is repeated; `kubectl get --raw /readyz` shows whether the API server is well"

    def __init__(
        self, step: str, path: str = "", cause: object = "", hint: str = "", status: int = 0
    ) -> None:
        super().__init__(step, path, cause, hint)
        self.status = status


class CheckpointError(NvcError):
    """What the plugin keeps of a claim on the disk cannot be read or written."""

    code = "NVC-2403"
    stage = "kubernetes"
    hint = "the message names the file; a damaged one can be removed once its pod is gone"
