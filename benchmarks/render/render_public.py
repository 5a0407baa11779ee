"""The table of other people's programs in benchmarks/README.md, from results/<machine>/<date>-public*.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HEAD = """## Programs of others

Unmodified training scripts of public repositories, plain and under `hotlap run`, in turn, each from a fresh folder,
seeded and timed from outside, by when their own lines of progress come: `python benchmarks/public/run.py`. *first* is
how much later the first of these lines comes, *whole* the time to the last line that both reached, start included,
*steady* compares the speed that each has in the second half of its own time, an evaluation now and then left out, both
as times as fast as plain: medians over rounds. *output* compares all that was
written, line by line, as far as both came, but for bars, times and rates; a program that does not repeat itself when
it is run twice tells nothing there.
"""
OF_DATA = ("resident-data", "sample-cache", "whole-batch-fetch", "loader-persistent")  # what needs fetching to be pure
NO_LOADER = "no effect: the moment it waits for never came"
HEADINGS = ("program", "repository", "kinds", "arm", "first", "whole", "steady", "on at the end", "output")


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    found = sorted((folder / "results").glob("*/*-public*.json"), key=lambda path: (path.parent.name, path.name))
    return [HEAD, *(_table(path, folder) for path in found)] if found else []


def _table(path: Path, folder: Path) -> str:
    result = json.loads(path.read_text(encoding="utf-8"))
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(row for one in result["programs"] for row in _rows(one))]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    machine, versions = result["machine"], ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['processor']}"
    link = f"[{path.name}]({path.relative_to(folder).as_posix()})"
    how = f"at most {result['seconds']:.0f} s an arm, {result['rounds']} rounds, {versions}"
    remark = f" {result['remark']}" if "remark" in result else ""
    return f"### {where}, {result['date'][:10]}\n\n{_summary(result)} {how}.{remark} Raw: {link}\n\n{table}\n"


def _rows(program: dict[str, Any]) -> list[tuple[str, ...]]:
    if "error" in program:
        return [(program["name"], program["repository"], "", "", "", "", "", "", program["error"][:80])]
    link = f"[{program['repository']}](https://github.com/{program['repository']}/tree/{program['commit']})"
    return [
        (
            program["name"],
            link,
            ", ".join(program["kinds"]),
            arm,
            _figure(found["first_later"], "{:+.1f} s"),
            _figure(found["whole"], "{:.2f}"),
            _figure(found["steady"], "{:.2f}"),
            ", ".join(found["on"]) or "–",
            output(program, found, arm),
        )
        for arm, found in program["against_plain"].items()
    ]


def output(program: dict[str, Any], found: dict[str, Any], arm: str = "run") -> str:
    if any(one["code"] for one in program["arms"]["plain"]):
        return "does not run here"
    if found["failed"]:
        return f"**ended with {found['failed'][0]}**"
    if program["repeats_itself"] is False:
        return "does not repeat itself"
    if not found["compared"]:
        return "nothing to compare"
    if found["differs"] and arm == "rounding":
        return "differs, as it may"
    return "**differs**" if found["differs"] else f"same ({found['compared']} lines)"


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _summary(result: dict[str, Any]) -> str:
    """Of each arm, over the programs that run here."""
    told = []
    for arm in sorted({arm for one in result["programs"] for arm in one.get("against_plain", {})}):
        found = [(one, one["against_plain"][arm]) for one in result["programs"] if arm in one.get("against_plain", {})]
        found = [(one, this) for one, this in found if output(one, this, arm) != "does not run here"]
        words = [output(one, this, arm) for one, this in found]
        whole = [this["whole"] for _, this in found if this["whole"]]
        steady = [this["steady"] for _, this in found if this["steady"]]
        read = [one["outcomes"][arm] for one, _ in found if one.get("outcomes", {}).get(arm)]
        with_loader = [data for data in read if not data.get("resident-data", NO_LOADER).startswith(NO_LOADER)]
        served = sum(any(data.get(name, "").startswith("applied") for name in OF_DATA) for data in with_loader)
        share = f" Of {len(with_loader)} that read through a DataLoader, data is known to be pure and kept in {served}."
        told.append(
            f"*{arm}*: {len(found)} programs of {len({one['repository'] for one, _ in found})} repositories; "
            f"geometric mean {_mean(steady):.2f} steady, {_mean(whole):.2f} whole, slowest {min(whole):.2f} whole; "
            f"output the same in {sum(one.startswith('same') for one in words)}, not to be told in "
            f"{sum(one in ('does not repeat itself', 'nothing to compare') for one in words)}, "
            f"{sum('differs' in one for one in words)} differ, {sum('ended' in one for one in words)} failed."
            + (share if with_loader else "")
        )
    return "\n".join(told)


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
