"""Two revisions of `hotlap scan` on the same trees, in turn: processor time, and whether they find the same.

`python benchmarks/observing/scan_revisions.py BEFORE AFTER TREE… [--rounds N] [--out FILE]`, where BEFORE and AFTER
are checkouts of this repository. Each scan has a process of its own that has read the rules already, one core, no
cache, all rules and --pedantic. Of each tree and revision the quickest round counts, as other load only adds to it.
The findings are compared as JSON, with messages, places, repairs and evidence.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

REVISIONS = ("before", "after")
SCAN = """
import json, sys, time
from hotlap.analysis.parse import files
from hotlap.records.codec import to_json
from hotlap.scanning import FindingFilter, scan
wanted = FindingFilter(pedantic=True, preview=True)
wanted.rules()
sources, _ = files.discover([sys.argv[1]])
began = time.process_time()
found = scan(sources, wanted, cores=1)
seconds = time.process_time() - began
print(json.dumps({"seconds": seconds, "lines": found.lines, "scan": json.loads(to_json(found))}))
"""


def scanned(checkout: Path, tree: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCAN, str(tree)],
        env={**os.environ, "PYTHONPATH": str(checkout)},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def measured(checkouts: tuple[Path, Path], tree: Path, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {name: [] for name in REVISIONS}
    scans: dict[str, Any] = {}
    for _ in range(rounds):
        for name, checkout in zip(REVISIONS, checkouts, strict=True):
            found = scanned(checkout, tree)
            seconds[name].append(found["seconds"])
            scans[name] = found
    before, after = ({json.dumps(item) for item in scans[name]["scan"]["findings"]} for name in REVISIONS)
    return {
        "tree": tree.name,
        "lines": scans["after"]["lines"],
        "processor_seconds": seconds,
        "findings": len(after),
        "same": scans["before"]["scan"] == scans["after"]["scan"],
        "only_before": sorted(before - after),
        "only_after": sorted(after - before),
    }


def speed(rows: list[dict[str, Any]], name: str) -> float:
    return sum(row["lines"] for row in rows) / sum(min(row["processor_seconds"][name]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("trees", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for tree in args.trees:
        rows.append(measured((args.before.resolve(), args.after.resolve()), tree.resolve(), args.rounds))
        row = rows[-1]
        both = " -> ".join(f"{speed([row], name):7,.0f}" for name in REVISIONS)
        same = (
            "the same"
            if row["same"]
            else f"DIFFERENT: {len(row['only_before'])} before, {len(row['only_after'])} after"
        )
        print(
            f"{row['tree']:45} {row['lines']:8,} lines {both} a second  {row['findings']:5} findings, {same}",
            flush=True,
        )
    print(f"all: {' -> '.join(f'{speed(rows, name):,.0f}' for name in REVISIONS)} lines a second of processor time")
    if args.out:
        record = {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"), "python": platform.python_version(),
            "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg(), "rows": rows,
        }  # fmt: skip
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
