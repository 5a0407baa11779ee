"""Make benchmarks/README.md from the results committed beside it. `python benchmarks/render/render.py [--check]`

Reads results/<machine>/<date>-bench*.json, -quality*.json, -peer-settings*.json, -overhead.json, -entries*.json,
-engine-*.json, -public*.json, -recurrent-grid.json, -prover*.json and tunes/*.json, draws the plots beside them where
missing, and writes the page. With --check nothing is written; the exit code is 1 if the page differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import render_engine
import render_entries
import render_peers
import render_public
import render_quality
import render_recurrent
import render_tunes
from render_prover import section

from hotlap.bench import markdown, plot, record

HERE = Path(__file__).resolve().parents[1]
BENCHES, OVERHEADS = "*/*-bench*.json", "*/*-overhead.json"

HEAD = """# Benchmarks

Made by `python benchmarks/render/render.py` from the raw results in [results](results); do not edit. Every result
names its machine, versions, command and date, and holds every raw sample.
"""
HOW = """## Arms against arms

`hotlap bench` trains the bundled workloads in several arms, interleaved, in fresh processes, on the same data. *naive*
is the pipeline as the report found it, *lightning* and *accelerate* are the same training with the frameworks' own fast
settings, *run* is the naive script under `hotlap run`, *engine* the same training written with `hotlap.engine`, and
*limit* the same written by hand for the hardware. Measure it yourself: `hotlap bench --size tiny`.
"""
OVERHEAD = """## What observing costs

`hotlap profile` on a typical step of about 5 ms: observed and unobserved blocks interleaved in one process, and the
paired difference with its 95 % interval (`python benchmarks/observing/overhead.py`).
"""
OVERHEAD_HEADINGS = ("machine", "date", "torch, Python", "step", "observing adds", "share of the step", "raw")


def page(folder: Path) -> str:
    """Return the whole page for the results in folder/results."""
    results = folder / "results"
    benches = sorted(results.glob(BENCHES), key=_order)
    overheads = sorted(results.glob(OVERHEADS), key=_order)
    parts = [HEAD, *render_public.section(folder)]
    if benches:
        parts += [HOW, *(_bench(path, folder) for path in benches)]
    parts += render_quality.section(folder)
    parts += render_peers.section(folder)
    if overheads:
        parts += [OVERHEAD, _overheads(overheads, folder)]
    parts += render_entries.section(folder)
    parts += render_engine.section(folder)
    parts += render_recurrent.section(folder)
    parts += render_tunes.section(folder)
    parts += section(folder)
    return "\n".join(parts)


def draw_missing(folder: Path) -> None:
    for path in sorted((folder / "results").glob(BENCHES)):
        if not path.with_suffix(".svg").exists():
            plot.draw(record.load(path), path, ("svg",))


def _order(path: Path) -> tuple[str, str]:
    return path.parent.name, path.name


def _bench(path: Path, folder: Path) -> str:
    bench = record.load(path)
    drawn = any(row.ratio for row in bench.summary)
    picture = path.with_suffix(".svg").relative_to(folder).as_posix() if drawn else None
    remark = path.with_suffix(".remark.md")  # what is known about a result but not shown by its figures
    said = f"\n**{remark.read_text(encoding='utf-8').strip()}**\n" if remark.exists() else ""
    return markdown.page(bench, picture, heading="###") + said + f"\nRaw: {_link(path, folder)}\n"


def _overheads(paths: list[Path], folder: Path) -> str:
    lines = [OVERHEAD_HEADINGS, ("---",) * len(OVERHEAD_HEADINGS)]
    lines += [_overhead(json.loads(path.read_text(encoding="utf-8")), path, folder) for path in paths]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _overhead(found: dict[str, Any], path: Path, folder: Path) -> tuple[str, ...]:
    machine, result = found["machine"], found["result"]
    low, high = result["overhead_us_95"]
    share = result["overhead_percent_95"]
    return (
        machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}",
        found["date"],
        f"{machine['torch']}, {machine['python']}",
        f"{result['step_ms']:.2f} ms",
        f"{result['overhead_us']:.0f} µs [{low:.0f}, {high:.0f}]",
        f"{result['overhead_percent']:.1f} % [{share[0]:.1f}, {share[1]:.1f}]",
        _link(path, folder),
    )


def _link(path: Path, folder: Path) -> str:
    return f"[{path.name}]({path.relative_to(folder).as_posix()})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; compare only")
    readme = HERE / "README.md"
    if parser.parse_args().check:
        same = readme.exists() and readme.read_text(encoding="utf-8") == page(HERE)
        if not same:
            print("benchmarks/README.md is out of date; type: python benchmarks/render/render.py", file=sys.stderr)
        return 0 if same else 1
    draw_missing(HERE)
    render_recurrent.draw_missing(HERE)
    readme.write_text(page(HERE), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
