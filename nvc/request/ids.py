"""Users and groups by number or name, as every command line takes them: `UID[:GID]`."""

from __future__ import annotations

from nvc.base.errors import InputError

#: The kernel takes the largest id for "leave it", so nobody can have it.
MAX_ID = 2**32 - 2


def user_and_group(spec: str) -> tuple[int, int]:
    """The ids of `UID[:GID]`, numbers or names; without a group, the user's own. Source: passwd and group.

    Raises InputError.
    """
    import pwd  # on few command lines only

    name, _, group = spec.partition(":")
    try:
        if name[:1].isdigit():
            uid = _id(name)
            gid = _group(group) if group else pwd.getpwuid(uid).pw_gid
        else:
            entry = pwd.getpwnam(name)
            uid = entry.pw_uid
            gid = _group(group) if group else entry.pw_gid
    except KeyError:
        hint = "`getent passwd` and `getent group` list them"
        raise InputError("parse user/group failed", spec, "no such user or group", hint) from None
    except ValueError:
        hint = "write USER or USER:GROUP, by names or numbers"
        raise InputError("parse user/group failed", spec, "invalid argument", hint) from None
    return uid, gid


def _group(name: str) -> int:
    if name[:1].isdigit():
        return _id(name)
    import grp

    return grp.getgrnam(name).gr_gid


def _id(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20) or int(digits) > MAX_ID:
        raise ValueError(digits)
    return int(digits)
