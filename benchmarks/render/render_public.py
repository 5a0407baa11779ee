"""The table of other people's programs in benchmarks/README.md, from results/<machine>/<date>-public*.json."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HEAD = """## Programs of others

Unmodified training scripts of public repositories, plain and under `hotlap run`, in turn, each from a fresh folder,
seeded, and timed from outside by their own progress lines: `python benchmarks/public/run.py`. *first* is how much later
the first of these lines comes, *whole* compares the time to the last line that both reached, start included, and
*steady* the speed that each has in the second half of its own time, occasional evaluations left out; both are multiples
of plain's speed, as medians over rounds. *output* compares everything written, line by line, as far as both came,
except for bars, times and rates; it says nothing about a program that does not repeat itself when it is run twice.
"""
OF_DATA = ("resident-data", "sample-cache", "whole-batch-fetch", "loader-persistent")  # what needs fetching to be pure
NO_LOADER = (
    "no effect: never triggered in these steps",
    "no effect: the moment it waits for never came",
)  # now, earlier
HEADINGS = ("program", "repository", "kinds", "arm", "first", "whole", "steady", "on at the end", "output")


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    found = sorted((folder / "results").glob("*/*-public*.json"), key=lambda path: (path.parent.name, path.name))
    return [HEAD, *(_table(path, folder) for path in found)] if found else []


def _table(path: Path, folder: Path) -> str:
    result = json.loads(path.read_text(encoding="utf-8"))
    lines = [HEADINGS, ("---",) * len(HEADINGS), *(row for program in result["programs"] for row in _rows(program))]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    machine, versions = result["machine"], ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['processor']}"
    link = f"[{path.name}]({path.relative_to(folder).as_posix()})"
    how = f"At most {result['seconds']:.0f} s per arm, rounds: {result['rounds']}, {versions}"
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
    if any(ran["code"] for ran in program["arms"]["plain"]):
        return "does not run here"
    if found["failed"]:
        return f"**ended with {found['failed'][0]}**"
    if program["repeats_itself"] is False:
        return "does not repeat itself"
    if not found["compared"]:
        return "nothing to compare"
    if found["differs"] and arm.startswith("rounding"):
        return "differs, as it may"
    return "**differs**" if found["differs"] else f"same ({found['compared']} lines)"


def _figure(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _summary(result: dict[str, Any]) -> str:
    """Summarise each arm over the programs that run here."""
    lines = []
    for arm in sorted({arm for program in result["programs"] for arm in program.get("against_plain", {})}):
        found = [
            (program, program["against_plain"][arm])
            for program in result["programs"]
            if arm in program.get("against_plain", {})
        ]
        found = [
            (program, against) for program, against in found if output(program, against, arm) != "does not run here"
        ]
        words = [output(program, against, arm) for program, against in found]
        whole = [against["whole"] for _, against in found if against["whole"]]
        steady = [against["steady"] for _, against in found if against["steady"]]
        read = [program["outcomes"][arm] for program, _ in found if program.get("outcomes", {}).get(arm)]
        with_loader = [data for data in read if not data.get("resident-data", NO_LOADER[0]).startswith(NO_LOADER)]
        served = sum(any(data.get(name, "").startswith("applied") for name in OF_DATA) for data in with_loader)
        share = f" Of {len(with_loader)} with a DataLoader, {served} have data that is known to be pure and is cached."
        lines.append(
            f"*{arm}*: {len(found)} programs of {len({program['repository'] for program, _ in found})} repositories; "
            f"geometric mean {_mean(steady):.2f} steady, {_mean(whole):.2f} whole, slowest {min(whole):.2f} whole; "
            f"output the same in {sum(word.startswith('same') for word in words)}, not comparable in "
            f"{sum(word in ('does not repeat itself', 'nothing to compare') for word in words)}, "
            f"different in {sum('differs' in word for word in words)}, "
            f"failed in {sum('ended' in word for word in words)}." + (share if with_loader else "")
        )
    return "\n".join(lines)


def _mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
