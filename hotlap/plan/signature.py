"""Signs the plans that this user's tunes have proven, so that a file written by hand cannot claim to be one.

The key is a random number in the user's state folder that nobody else can read. It is never looked up in the folder
of the runs, which the user may have put into a repository.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.records import private
from hotlap.records.codec import to_json
from hotlap.records.plan import Plan

NAME = "key"
SIZE = 32  # bytes
SIGNATURE = "signature"
MARK, MOST_MARK = "mine.txt", 100


def signed(plan: Plan, folder: Path) -> Plan:
    """Sign a plan with the key in `folder`; a new key is made if there is none that is still secret."""
    key = existing(folder) or _made(folder)
    fields = json.loads(to_json(plan))
    return replace(plan, signature=_signature(fields, key))


def is_signed(fields: Mapping[str, Any], folder: Path) -> bool:
    """Return whether the fields of a file, every one of them, are what was signed here."""
    key, claimed = existing(folder), fields.get(SIGNATURE)
    if key is None or not isinstance(claimed, str):
        return False
    return hmac.compare_digest(claimed.encode(errors="replace"), _signature(fields, key).encode())


def existing(folder: Path) -> bytes | None:
    """Return the key, or None if it is missing or others could have read or written it."""
    path = folder / NAME
    try:
        private.refuse_what_others_can_change(path)
        key = private.read(path, SIZE)
        status = path.stat()
    except (private.Unfit, OSError):
        return None
    secret = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    return key if secret and len(key) == SIZE else None


def _made(folder: Path) -> bytes:
    """Make a key in place of whatever is there; processes that do so at once end up with the same key."""
    private.make_folder(folder)
    draft = folder / f"{NAME}-{os.getpid()}"
    private.write(draft, secrets.token_bytes(SIZE))
    try:
        os.link(draft, folder / NAME)
    except OSError:  # there is a key already, or the file system has no hard links
        if existing(folder) is None:
            draft.replace(folder / NAME)
    finally:
        draft.unlink(missing_ok=True)
    private.refuse_what_others_can_change(folder / NAME)
    key = existing(folder)
    if key is None:
        raise private.Unfit(f"{folder / NAME} cannot be kept private")
    return key


def mark(run: Path, folder: Path) -> None:
    """Mark a run folder as made by this user's tune, so that its plan may be signed later."""
    key = existing(folder) or _made(folder)
    private.write_text(run / MARK, _marking(run, key))


def refuse_unmarked(run: Path, folder: Path) -> None:
    key = existing(folder)
    if key is None and folder.exists():
        private.refuse_what_others_can_change(folder)
    if key is None or not os.path.lexists(run / MARK):
        raise private.Unfit(f"{run} was not started by your own hotlap tune")
    if not hmac.compare_digest(private.read(run / MARK, MOST_MARK), _marking(run, key).encode()):
        raise private.Unfit(f"{run} was started by somebody else, or somewhere else")


def _marking(run: Path, key: bytes) -> str:
    return hmac.new(key, b"run\0" + os.fsencode(os.path.realpath(run)), hashlib.sha256).hexdigest()


def _signature(fields: Mapping[str, Any], key: bytes) -> str:
    rest = {name: value for name, value in fields.items() if name != SIGNATURE}
    return hmac.new(key, json.dumps(rest, sort_keys=True).encode(), hashlib.sha256).hexdigest()
