"""What each line of a workload's training loop takes on the host, as it is and under `hotlap run`.

`python benchmarks/observing/loop_lines.py battery_fnn --lines FILE --size report --device cuda` trains by naive.py as
it is; put
`hotlap run --plan fast` in front for the other. The words after FILE are naive.py's own. A clock is read after each
statement of the loop over batches (a tenth of a microsecond each); FILE gets the median of each line, in µs, over all
steps but those of the first epochs, in which graphs are captured and code is compiled. A line that asks the device for
a value includes the wait; others are only issued.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections import defaultdict
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter_ns
from types import ModuleType

import torch

from hotlap.bench import surroundings, workloads

FUNCTIONS = ("train_epoch", "train_one_epoch")
FIRST_EPOCHS = 2
CLOCK = "_hotlap_lap"


class Laps(ast.NodeTransformer):
    """Reads the clock when an epoch begins, when a batch has arrived and after each statement that works on it."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name not in FUNCTIONS:
            return node
        for number, statement in enumerate(node.body):
            if isinstance(statement, ast.For):
                statement.body = [lap(statement.lineno), *self.timed(statement.body)]
                node.body.insert(number, lap(0))
                break
        return node

    def timed(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for statement in statements:
            if isinstance(statement, ast.With):
                statement.body = [lap(statement.lineno), *self.timed(statement.body)]
            found += [statement, lap(statement.lineno if not isinstance(statement, ast.With) else -statement.lineno)]
        return found


def lap(line: int) -> ast.stmt:
    return ast.parse(f"{CLOCK}({line})").body[0]


class Clock:
    def __init__(self) -> None:
        self._epochs = 0
        self._last = 0
        self.taken: dict[int, list[int]] = defaultdict(list)

    def __call__(self, line: int) -> None:
        now = perf_counter_ns()
        if line == 0:
            self._epochs += 1
        elif self._epochs > FIRST_EPOCHS:
            self.taken[line].append(now - self._last)
        self._last = perf_counter_ns()

    def medians(self, source: str) -> list[dict[str, object]]:
        """Return the median of each line; a negative line is the end of the block that begins there."""
        lines = source.splitlines()
        return [
            {"line": line, "text": "end of: " * (line < 0) + lines[abs(line) - 1].strip(), "steps": len(times),
             "us": round(statistics.median(times) / 1e3, 2)}
            for line, times in self.taken.items()
        ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=workloads.names(workloads.folder()))
    parser.add_argument("--lines", type=Path, required=True, metavar="FILE")
    options, its_own = parser.parse_known_args()
    naive = workloads.folder() / options.workload / "naive.py"
    source, clock = naive.read_text(encoding="utf-8"), Clock()
    tree = ast.fix_missing_locations(Laps().visit(ast.parse(source)))
    program = ModuleType("__main__")
    program.__dict__.update({"__file__": str(naive), CLOCK: clock})
    sys.modules["__main__"], sys.argv = program, [str(naive), *its_own]
    sys.path.insert(0, str(naive.parent))
    try:
        exec(compile(tree, str(naive), "exec"), program.__dict__)
    finally:
        rows = clock.medians(source)
        options.lines.write_text(
            json.dumps({**about(), "arguments": its_own, "lines": rows}, indent=1), encoding="utf-8"
        )
        for row in rows:
            print(f"{row['us']:9.1f} µs  {row['text']}", file=sys.stderr)
        print(f"{sum(row['us'] for row in rows):9.1f} µs  together", file=sys.stderr)  # type: ignore[misc]


def about() -> dict[str, object]:
    here, _ = surroundings.look("cuda" if torch.cuda.is_available() else "cpu")
    applied = any(name.endswith(".control.applied_plan") for name in sys.modules)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": here.machine.gpu or here.machine.cpu,
        "torch": torch.__version__,
        "under_hotlap_run": applied,
    }


if __name__ == "__main__":
    main()
