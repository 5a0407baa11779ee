"""A plan that a tune of this user has proven is signed; whoever writes a file by hand cannot say so.

The key is a random number in the user's state folder that nobody else can read. It is never looked for where runs are
kept, which the user may have put into a repository.
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
    """`folder` is that of the key, which is made where there is none, or none that is still secret."""
    key = existing(folder) or _made(folder)
    fields = json.loads(to_json(plan))
    return replace(plan, signature=_signature(fields, key))


def is_signed(fields: Mapping[str, Any], folder: Path) -> bool:
    """Whether the fields of a file are, every one of them, what was signed here."""
    key, claimed = existing(folder), fields.get(SIGNATURE)
    if key is None or not isinstance(claimed, str):
        return False
    return hmac.compare_digest(claimed.encode(errors="replace"), _signature(fields, key).encode())


def existing(folder: Path) -> bytes | None:
    """None where there is no key, or one that others could have read or written."""
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
    """In place of whatever is there. Of two processes that make one at once, both go on with the same."""
    private.make_folder(folder)
    draft = folder / f"{NAME}-{os.getpid()}"
    private.write(draft, secrets.token_bytes(SIZE))
    try:
        os.link(draft, folder / NAME)
    except OSError:  # there is one, or the file system knows no second name
        if existing(folder) is None:
            draft.replace(folder / NAME)
    finally:
        draft.unlink(missing_ok=True)
    private.refuse_what_others_can_change(folder / NAME)
    key = existing(folder)
    if key is None:
        raise private.Unfit(f"{folder / NAME} cannot be kept from others")
    return key


def mark(run: Path, folder: Path) -> None:
    """Says that the run folder was made by a tune of this user: what it holds may become a signed plan."""
    key = existing(folder) or _made(folder)
    private.write_text(run / MARK, _marking(run, key))


def refuse_unmarked(run: Path, folder: Path) -> None:
    key = existing(folder)
    if key is None and folder.exists():
        private.refuse_what_others_can_change(folder)
    if key is None or not os.path.lexists(run / MARK):
        raise private.Unfit(f"{run} was not begun by a tune of yours")
    if not hmac.compare_digest(private.read(run / MARK, MOST_MARK), _marking(run, key).encode()):
        raise private.Unfit(f"{run} was begun by somebody else, or somewhere else")


def _marking(run: Path, key: bytes) -> str:
    return hmac.new(key, b"run\0" + os.fsencode(os.path.realpath(run)), hashlib.sha256).hexdigest()


def _signature(fields: Mapping[str, Any], key: bytes) -> str:
    rest = {name: value for name, value in fields.items() if name != SIGNATURE}
    return hmac.new(key, json.dumps(rest, sort_keys=True).encode(), hashlib.sha256).hexdigest()
