"""A bench as Markdown."""

from __future__ import annotations

from hotlap.bench import table
from hotlap.bench.record import Bench, Row


def page(bench: Bench, plot: str | None, heading: str = "#") -> str:
    """Render the whole result; `plot` is the picture to show, relative to the page."""
    parts = [f"{heading} {title(bench)}", facts(bench)]
    if plot:
        parts.append(f"![Speed against naive]({plot})")
    parts += [rows_table(bench.summary), bullets(table.notes(bench))]
    if chosen := table.settings(bench):
        parts += ["What the frameworks chose:", bullets([f"`{line}`" for line in chosen])]
    if broken := table.broken(bench):
        parts += ["Broken:", bullets([escaped(line) for line in broken])]
    return "\n\n".join(parts) + "\n"


def title(bench: Bench) -> str:
    where = bench.machine.gpu or f"{bench.machine.cores} cores of {bench.machine.cpu}"
    return f"Bench on {where}, size {bench.choice.size}"


def facts(bench: Bench) -> str:
    machine = bench.machine
    gpu = f", {machine.gpus} × {machine.gpu}" if machine.gpu else ""
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    cuda = f", CUDA {machine.cuda}" if machine.gpu and machine.cuda else ""
    variables = "".join(f"{name}={value} " for name, value in bench.environment.items())
    return bullets(
        [
            f"{bench.date}, `{variables}{bench.command}`",
            f"{machine.cores} cores of {machine.cpu}, {machine.memory_mb / 1024:.0f} GiB{gpu}, {machine.system}",
            f"{versions}{cuda}",
        ]
    )


def rows_table(rows: tuple[Row, ...]) -> str:
    lines = [table.HEADINGS, ("---",) * len(table.HEADINGS)]
    lines += [table.cells(row) for row in rows]
    return "\n".join("| " + " | ".join(escaped(cell) for cell in line) + " |" for line in lines)


def bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def escaped(text: str) -> str:
    for character in "|*<":
        text = text.replace(character, f"\\{character}")
    return text
