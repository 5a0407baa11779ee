"""Make hotlap/catalog/precision.json from the recorded verdicts. `python benchmarks/render/render_scan.py [--check]`

Counts, for each rule, what the first scans of code that nobody had seen found true, false and arguable. Later scans of
the same code count nothing, since the rules were repaired looking at it. With --check nothing is written; the exit
code is 1 if the file differs.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "scan-quality"
PAGE = ROOT / "hotlap" / "catalog" / "precision.json"
VERDICTS = {"true": "true", "true, overlooked in the list": "true", "false": "false", "arguable": "arguable"}


def rounds(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        for made in json.loads(path.read_text(encoding="utf-8")).get("rounds", ()):
            if "found_by_the_first_scan" in made:
                yield made


def page(folder: Path = RESULTS) -> str:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for made in rounds(folder):
        for found in made["found_by_the_first_scan"]:
            if found["verdict"] in VERDICTS:
                counts[found["rule"]][VERDICTS[found["verdict"]]] += 1
    columns = dict.fromkeys(VERDICTS.values())
    rows = {rule: {verdict: counts[rule][verdict] for verdict in columns} for rule in sorted(counts)}
    body = ",\n".join(f" {json.dumps(rule)}: {json.dumps(row)}" for rule, row in rows.items())
    return f"{{\n{body}\n}}\n"


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
