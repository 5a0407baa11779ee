"""Graphs, made up: a node's class decides its words and most of its neighbours, so it can be learned.

The variant is the layout: `cora` (one graph: cora.content, cora.cites), `gin` (many small ones in one text file:
GRAPHS/GRAPHS.txt), `tu` (the same as the files that PyTorch Geometric's TUDataset reads: MUTAG/raw/MUTAG_*.txt),
`events` (one graph that grows, as its JODIEDataset reads it: wikipedia/raw/wikipedia.csv).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

SUBJECTS = ("Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic", "Rules", "Theory", "Reinforcement")


def make(folder: Path, variant: str = "cora") -> None:
    {"cora": _cora, "gin": _gin, "tu": _tu, "events": _events}[variant](folder, np.random.default_rng(0))


def _cora(folder: Path, rng: np.random.Generator, nodes: int = 2000, words: int = 300) -> None:
    classes = rng.integers(0, len(SUBJECTS), nodes)
    likely = rng.random((len(SUBJECTS), words)) < 0.1
    present = rng.random((nodes, words)) < np.where(likely[classes], 0.25, 0.01)
    names = rng.permutation(10 * nodes)[:nodes] + 1
    rows = (
        f"{name}\t" + "\t".join("1" if node else "0" for node in row) + f"\t{SUBJECTS[kind]}"
        for name, row, kind in zip(names, present, classes, strict=True)
    )
    (folder / "cora.content").write_text("\n".join(rows) + "\n")
    members = [np.flatnonzero(classes == kind) for kind in range(len(SUBJECTS))]
    edges = set()
    for node, kind in enumerate(classes):
        alike = rng.choice(members[kind], 2)
        edges |= {(node, int(neighbour)) for neighbour in (*alike, rng.integers(nodes)) if neighbour != node}
    (folder / "cora.cites").write_text(
        "".join(f"{names[node]}\t{names[neighbour]}\n" for node, neighbour in sorted(edges))
    )


def _small(rng: np.random.Generator, count: int) -> list[tuple[int, list[int], list[set[int]]]]:
    """Class, kinds of the nodes, neighbours: rings of class 0 have no chords, those of class 1 have."""
    found = []
    for _ in range(count):
        label, nodes = int(rng.integers(2)), int(rng.integers(10, 29))
        neighbours: list[set[int]] = [{(node - 1) % nodes, (node + 1) % nodes} for node in range(nodes)]
        for node, neighbour in rng.integers(0, nodes, (label * nodes // 4, 2)):
            if node != neighbour:
                neighbours[node].add(int(neighbour))
                neighbours[neighbour].add(int(node))
        found.append((label, [int(kind) for kind in rng.integers(0, 7, nodes)], neighbours))
    return found


def _gin(folder: Path, rng: np.random.Generator) -> None:
    lines, graphs = [], _small(rng, 400)
    for label, kinds, neighbours in graphs:
        lines.append(f"{len(kinds)} {label}")
        lines += [
            f"{kind} {len(near)} {' '.join(map(str, sorted(near)))}"
            for kind, near in zip(kinds, neighbours, strict=True)
        ]
    (folder / "GRAPHS").mkdir()
    (folder / "GRAPHS" / "GRAPHS.txt").write_text("\n".join([str(len(graphs)), *lines]) + "\n")


def _tu(folder: Path, rng: np.random.Generator) -> None:
    edges, indicator, labels, kinds, first = [], [], [], [], 1
    for number, (label, own, neighbours) in enumerate(_small(rng, 1000), 1):
        edges += [
            f"{first + node}, {first + neighbour}" for node, near in enumerate(neighbours) for neighbour in sorted(near)
        ]
        indicator += [str(number)] * len(own)
        kinds += map(str, own)
        labels.append(str(label))
        first += len(own)
    raw = folder / "MUTAG" / "raw"
    raw.mkdir(parents=True)
    files = {"A": edges, "graph_indicator": indicator, "graph_labels": labels, "node_labels": kinds}
    for name, lines in files.items():
        (raw / f"MUTAG_{name}.txt").write_text("\n".join(lines) + "\n")


def _events(folder: Path, rng: np.random.Generator, events: int = 4000, features: int = 32) -> None:
    users, items = 300, 100
    who = rng.integers(0, users, events)
    liked = rng.integers(0, items, (users, 3))
    what = np.where(rng.random(events) < 0.8, liked[who, rng.integers(0, 3, events)], rng.integers(0, items, events))
    who[:users], what[:items] = np.arange(users), np.arange(items)  # each of them at least once
    when = np.sort(rng.integers(0, 10**6, events))
    rows = (
        f"{source},{target},{float(at)},0," + ",".join(f"{value:.3f}" for value in rng.normal(size=features))
        for source, target, at in zip(who, what, when, strict=True)
    )
    raw = folder / "wikipedia" / "raw"
    raw.mkdir(parents=True)
    head = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"
    (raw / "wikipedia.csv").write_text("\n".join([head, *rows]) + "\n")
