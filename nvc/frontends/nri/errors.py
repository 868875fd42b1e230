"""Errors of nvc-nri."""

from __future__ import annotations

from nvc.base.errors import NvcError


class NriError(NvcError, code="NVC-2501", stage="nri", hint="see the runtime's log"):
    """The runtime's NRI socket cannot be reached, has been closed, or says what is not of the protocol."""
