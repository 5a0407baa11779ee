"""Time public training programs, plain and under hotlap. `python benchmarks/public/run.py [NAME …] --out FILE`

Each program of programs/ is brought from its repository at its commit, unmodified, its data made by the recipe in
data/, and started by its own command: plain, and under `hotlap run`, in turn, each from a fresh folder and seeded from
outside (seeded/), since few programs do. The arms `fixed` and `fixed-unsafe` are plain runs
after `hotlap scan --fix`. The time is read by when its own lines of progress come. What it wrote is compared line by
line, for as far as both came; what differs between two plain runs already says nothing. Packages that a program needs
must be installed already; `--packages` prints them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import measure
import sources
from program import FOLDER, Program, ProgramWrong, programs

import hotlap

ARMS = {
    "plain": (),
    "run": ("hotlap", "run"),
    "rounding": ("hotlap", "run", "--risk", "rounding"),
    "at-once": ("hotlap", "run", "--at-once"),
    "fixed": (),
    "fixed-unsafe": (),
}
REPAIRS = {"fixed": ("--fix",), "fixed-unsafe": ("--fix", "--unsafe")}  # of the whole repository, before it starts
SEEDED = Path(__file__).resolve().parent / "seeded"
ENOUGH = 4  # lines of progress, to tell a speed by
PAUSE, SELDOM = 10, 0.05  # times the usual time between two lines, and of these times: an evaluation
SHOWN = 400  # characters of a line that differs


def main() -> int:
    args = _arguments()
    try:
        chosen = programs(args.names, args.programs)
    except ProgramWrong as error:
        print(error, file=sys.stderr)
        return 2
    if args.packages:
        print("\n".join(sorted({item for program in chosen for item in program.packages})))
        return 0
    results = _kept(args.out) if args.resume else []
    for number, program in enumerate(chosen, 1):
        if any(item["name"] == program.name for item in results):
            continue
        print(f"{number} of {len(chosen)}  {program.name}", end="  ", flush=True)
        results.append(measured(program, args))
        print(summary_line(results[-1]), flush=True)
        _keep(args.out, results, args)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs; all of them where none is named")
    parser.add_argument("--arms", default="plain,run", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--seconds", type=float, default=60.0, help="that each arm may take, at most")
    parser.add_argument("--lines", type=int, help="of progress, after which an arm ends: for what is written alone")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--sources", type=Path, help="a folder of git directories OWNER+NAME, instead of GitHub")
    parser.add_argument("--programs", type=Path, default=FOLDER, help="a folder of such TOML files of your own")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "hotlap-public")
    parser.add_argument("--out", type=Path, default=Path("public.json"))
    parser.add_argument("--resume", action="store_true", help="leave out what --out has already")
    parser.add_argument("--packages", action="store_true", help="print what the programs import, and end")
    return parser.parse_args()


# One program


def measured(program: Program, args: argparse.Namespace) -> dict[str, Any]:
    """Run all arms of a program, in turn."""
    arms: dict[str, list[measure.Ran]] = {name: [] for name in args.arms.split(",")}
    decided: dict[str, Any] = {}
    outcomes: dict[str, dict[str, str]] = {}
    try:
        for _ in range(args.rounds):
            for name, rounds in arms.items():
                ran, decided[name], outcomes[name] = _arm(program, name, args)
                rounds.append(ran)
    except (subprocess.CalledProcessError, OSError, ImportError, StopIteration) as error:
        return {"name": program.name, "repository": program.repository, "error": f"cannot be started: {error!r}"}
    return {
        "name": program.name,
        "repository": program.repository,
        "commit": program.commit,
        "command": list(_command(program, args.device)),
        "kinds": list(program.kinds),
        "repeats_itself": _repeats(program, arms["plain"]),
        "arms": {name: _summary(program, rounds) for name, rounds in arms.items()},
        "against_plain": {
            name: _against(program, arms["plain"], rounds) | {"on": _on(decided[name])}
            for name, rounds in arms.items()
            if name != "plain"
        },
        "decided": {name: found for name, found in decided.items() if found is not None},
        "outcomes": {name: found for name, found in outcomes.items() if found},
    }


def _command(program: Program, device: str) -> tuple[str, ...]:
    return program.cuda if device == "cuda" and program.cuda is not None else program.command


def _arm(program: Program, name: str, args: argparse.Namespace) -> tuple[measure.Ran, Any, dict[str, str]]:
    """Return how an arm ran, what was decided, and the outcome of each optimisation."""
    work = args.work.resolve()
    root = sources.code(program, work, args.sources)
    if name in REPAIRS:
        _repair(root, REPAIRS[name])
    data = sources.data(program, work, root)
    words = [word.format(data=data, root=root) for word in _command(program, args.device)]
    binaries = str(Path(sys.executable).parent)
    given = {name: value.format(data=data, root=root) for name, value in program.environment.items()}
    with tempfile.TemporaryDirectory() as state:
        environment = {
            **os.environ,
            **given,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SEEDED), given.get("PYTHONPATH", "")))),
            "PYTHONUNBUFFERED": "1",
            "PYTHONHASHSEED": "0",
            "XDG_STATE_HOME": state,
            "WANDB_MODE": "disabled",
            "HF_HUB_OFFLINE": "1",
        }
        enough = measure.Enough(program.progress, args.lines) if args.lines else None
        ran = measure.run((*ARMS[name], *words), root / program.folder, environment, args.seconds, enough)
        shown = _decisions(root / program.folder, environment) if ARMS[name] else None
        return ran, shown, _outcomes(Path(state))


def _repair(root: Path, options: Sequence[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(hotlap.__file__).parents[1])}
    command = [sys.executable, "-m", "hotlap", "scan", ".", *options]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True)
    if done.returncode not in (0, 1):
        raise subprocess.CalledProcessError(done.returncode, command)


def _decisions(folder: Path, environment: dict[str, str]) -> Any:
    shown = subprocess.run(["hotlap", "show", "--json"], cwd=folder, env=environment, capture_output=True, text=True)
    try:
        return json.loads(shown.stdout)
    except ValueError:
        return None


def _outcomes(state: Path) -> dict[str, str]:
    """Return the outcome of each optimisation in the process that applied most of them."""
    files = state.glob("hotlap/*/runs/*/running/outcomes-*.json")
    found = [json.loads(file.read_text())["outcomes"] for file in files]
    main = max(found, key=lambda these: sum(outcome["status"] == "applied" for outcome in these), default=[])
    return {outcome["name"]: f"{outcome['status']}: {outcome['why']}"[:SHOWN] for outcome in main}


def _on(decided: Any) -> list[str]:
    return list(decided["on"]) if decided else []


# What it comes to


def _summary(program: Program, rounds: Sequence[measure.Ran]) -> list[dict[str, Any]]:
    found = []
    for ran in rounds:
        at = ran.progress(program.progress)
        found.append(
            {
                "seconds": round(ran.seconds, 3),
                "code": ran.code,
                "progress": [round(seconds, 4) for seconds in _thinned(at)],
                "lines": len(at),
                "said": ran.ours(),
                "end": [text[:SHOWN] for _, _, text in ran.lines[-6:]] if ran.code else [],
            }
        )
    return found


def _thinned(times: list[float], most: int = 200) -> list[float]:
    return times if len(times) <= most else [times[number * (len(times) - 1) // (most - 1)] for number in range(most)]


def _against(program: Program, plain: Sequence[measure.Ran], rounds: Sequence[measure.Ran]) -> dict[str, Any]:
    pairs = [_pair(program, *both) for both in zip(plain, rounds, strict=True)]
    known = [pair for pair in pairs if pair is not None]
    return {
        "first_later": _median([pair["first_later"] for pair in known]),
        "whole": _median([pair["whole"] for pair in known]),
        "steady": _median([pair["steady"] for pair in known]),
        "pairs": pairs,
        "compared": min(_compared(program, *both) for both in zip(plain, rounds, strict=True)),
        "differs": _differs(program, plain, rounds),
        "failed": [ran.code for ran in rounds if ran.code not in (None, 0)],
    }


def _pair(program: Program, plain: measure.Ran, ours: measure.Ran) -> dict[str, float | None] | None:
    """Compare two runs from the start, over the progress that both made, and by the speed of each one's second half."""
    theirs, mine = (ran.progress(program.progress) for ran in (plain, ours))
    last = min(len(theirs), len(mine)) - 1
    if last < 0:
        return None
    return {
        "first_later": round(mine[0] - theirs[0], 3),
        "whole": round(theirs[last] / mine[last], 4),
        "steady": _steady(theirs, mine),
    }


def _steady(plain: list[float], ours: list[float]) -> float | None:
    """Compare lines per second in the second half of each one's own time: by then the quicker one has long decided."""
    before, after = _rate(plain), _rate(ours)
    return None if before is None or after is None else round(after / before, 4)


def _rate(times: list[float]) -> float | None:
    """Return lines per second, or None for too few. Occasional evaluations are left out: one arm may have one more."""
    half = (times[0] + times[-1]) / 2
    late = [time for time in times if time >= half]
    if len(late) < ENOUGH or late[-1] == late[0]:
        return None
    gaps = [after - before for before, after in pairwise(late)]
    usual = [gap for gap in gaps if gap <= PAUSE * statistics.median(gaps)]
    gaps = usual if len(gaps) - len(usual) <= SELDOM * len(gaps) and sum(usual) else gaps
    return len(gaps) / sum(gaps)


def _median(found: list[Any]) -> float | None:
    known = [value for value in found if value is not None]
    return round(statistics.median(known), 4) if known else None


def _repeats(program: Program, plain: Sequence[measure.Ran]) -> bool | None:
    """Return whether it writes the same each time; None if unknown: it was run once, or wrote nothing to compare."""
    if len(plain) < 2 or _compared(program, plain[0], plain[1]) == 0:
        return None
    return _difference(program, plain[0], plain[1]) is None


def _compared(program: Program, first_ran: measure.Ran, second_ran: measure.Ran) -> int:
    """Count the lines that both have written."""
    first, second = first_ran.output(program.varies), second_ran.output(program.varies)
    return sum(min(len(lines), len(second[stream])) for stream, lines in first.items())


def _differs(program: Program, plain: Sequence[measure.Ran], rounds: Sequence[measure.Ran]) -> list[str] | None:
    if _repeats(program, plain) is False:
        return None
    found = (_difference(program, *both) for both in zip(plain, rounds, strict=True))
    return next((difference for difference in found if difference is not None), None)


def _difference(program: Program, first_ran: measure.Ran, second_ran: measure.Ran) -> list[str] | None:
    """Return the first line of each that is not the same, as far as both came."""
    first, second = first_ran.output(program.varies), second_ran.output(program.varies)
    for stream, lines in first.items():
        for line, theirs in zip(lines, second[stream]):  # noqa: B905 - for as far as both came
            if line != theirs:
                return [f"{stream}: {line[:SHOWN]}", f"{stream}: {theirs[:SHOWN]}"]
    return None


def summary_line(result: dict[str, Any]) -> str:
    if "error" in result:
        return result["error"]
    parts = []
    for name, found in result["against_plain"].items():
        whole, steady, later = found["whole"], found["steady"], found["first_later"]
        same = f"DIFFERS {found['differs']}" if found["differs"] else f"same in {found['compared']} lines"
        same = "varies by itself" if result["repeats_itself"] is False else same
        failed = f" FAILED {found['failed']}" if found["failed"] else ""
        on = ", ".join(found["on"]) or "nothing on"
        parts.append(f"{name}: first {later} s later, whole {whole}, steady {steady}, {same}{failed} ({on})")
    broken = [ran["code"] for ran in result["arms"]["plain"] if ran["code"] not in (None, 0)]
    return "; ".join(parts) + (f"; plain ends with {broken[0]}" if broken else "")


# The file


def _kept(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["programs"] if path.exists() else []


def _keep(path: Path, results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    gpu, torchs = None, metadata.version("torch")
    if args.device == "cuda":
        import torch

        gpu = torch.cuda.get_device_name()
    record = {
        "command": f"python benchmarks/public/run.py {' '.join(sys.argv[1:])}",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "processor": platform.machine(), "gpu": gpu},
        "versions": {
            "hotlap": hotlap.__version__,
            "torch": torchs,
            "python": platform.python_version(),
        },
        "seconds": args.seconds,
        "rounds": args.rounds,
        "programs": results,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
