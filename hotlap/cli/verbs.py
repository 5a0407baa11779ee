"""The verbs by what a user wants to do; `hotlap --help` and the completion show them without importing any of them."""

from __future__ import annotations

from hotlap.cli.lazy import Verb

FASTER = {
    "run": Verb(
        "hotlap.cli.run",
        "run",
        "Train with the optimisations that make it faster; no source is touched.",
        ("hotlap run python train.py", "hotlap run --risk rounding --without gc-pauses torchrun train.py"),
    ),
    "tune": Verb(
        "hotlap.cli.tune",
        "tune",
        "Find what makes a training command faster without harm, and prove it.",
        (
            "hotlap tune python train.py",
            "hotlap tune --budget 30m --metric 'val loss[ :=]+([-+.0-9eE]+)' python train.py",
        ),
    ),
}
SLOW = {
    "profile": Verb(
        "hotlap.cli.profile",
        "profile",
        "Run a training command and show where its time goes.",
        ("hotlap profile python train.py", "hotlap profile --steps 200 --trace torchrun train.py"),
    ),
    "scan": Verb(
        "hotlap.cli.scan",
        "scan",
        "Find what slows training down in the source, and repair it.",
        ("hotlap scan src", "hotlap scan src --select H2 --diff"),
    ),
}
SLOWER = {
    "compare": Verb(
        "hotlap.cli.compare",
        "compare",
        "Tell whether NEW is slower than BASE.",
        (
            "hotlap compare main HEAD -- python train.py    one command on two git revisions, run alternately",
            "hotlap compare 'python a.py' 'python b.py'     two commands, run alternately",
            "hotlap compare RUN RUN                         two saved runs",
        ),
    ),
    "bench": Verb(
        "hotlap.cli.bench",
        "bench",
        "Train the bundled workloads in several ways and compare them.",
        ("hotlap bench leak --arms naive,run --size small", "hotlap bench --resume"),
    ),
}
SAVED = {
    "runs": Verb(
        "hotlap.cli.runs",
        "runs",
        "List the saved runs of this project.",
        ("hotlap runs", "hotlap runs --verb tune --json"),
    ),
    "show": Verb(
        "hotlap.cli.show",
        "show",
        "Show a saved run again.",
        ("hotlap show", "hotlap show 20261119 --markdown"),
    ),
    "report": Verb(
        "hotlap.cli.report",
        "report",
        "Show or write the report of a run.",
        ("hotlap report --open", "hotlap report 20261119 --output speed.md"),
    ),
}
LOOKUP = {
    "list": Verb(
        "hotlap.cli.catalogue",
        "list_entries",
        "List what hotlap can apply and what it finds in source.",
        ("hotlap list loader --risk exact", "hotlap list --json"),
    ),
    "explain": Verb(
        "hotlap.cli.catalogue",
        "explain",
        "Explain an optimisation, a rule of hotlap scan, or a finding of a profile.",
        ("hotlap explain fused-optimizer", "hotlap explain H201"),
    ),
    "doctor": Verb(
        "hotlap.cli.doctor",
        "doctor",
        "Check this machine and its torch: what works here, what does not, and why.",
        ("hotlap doctor", "hotlap doctor .venv/bin/python"),
    ),
    "completion": Verb(
        "hotlap.cli.completion",
        "completion",
        "Print the completion script of a shell.",
        (
            'eval "$(hotlap completion bash)"               in ~/.bashrc; for zsh in ~/.zshrc',
            "hotlap completion fish | source                in ~/.config/fish/config.fish",
        ),
    ),
}

GROUPS = {
    "Train faster": FASTER,
    "See why it is slow": SLOW,
    "Notice when it gets slower": SLOWER,
    "Saved runs": SAVED,
    "Look up": LOOKUP,
}
