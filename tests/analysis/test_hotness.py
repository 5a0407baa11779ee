"""How often a line runs, across files, and the chain of calls that explains it."""

from __future__ import annotations

import textwrap

import pytest

from hotlap.records.scan_finding import Frequency
from tests.analysis.marks import heats

TRAIN = """
    import torch
    from torch.utils.data import DataLoader
"""


LOOP = (
    TRAIN
    + """
    import helpers
    from helpers import Meter
    meter = Meter()
    for epoch in range(3):
        mark("epoch")
        for x, y in DataLoader(data):
            mark("batch")
            loss = model(x, y)
            loss.backward()
            helpers.note(loss)
            meter.add(loss)
    mark("after")
"""
)
HELPERS = """
    def note(value):
        mark("imported")
        deeper(value)

    def deeper(value):
        mark("deeper")

    def unused():
        mark("unused")

    class Meter:
        def add(self, value):
            mark("method")
"""


def test_heat_follows_calls_through_imports_and_methods():
    found = heats(train=LOOP, helpers=HELPERS)
    hot = {name for name, heat in found.items() if heat.frequency is Frequency.BATCH}
    assert hot == {"batch", "imported", "deeper", "method"}
    assert found["epoch"].frequency is Frequency.EPOCH
    assert found["after"].frequency is Frequency.ONCE
    assert found["unused"].frequency is Frequency.ONCE


def test_the_chain_leads_from_the_loop_to_the_line():
    chain = [(step.path, step.text) for step in heats(train=LOOP, helpers=HELPERS)["deeper"].why]
    assert chain == [
        ("train.py", "epoch loop"),
        ("train.py", "training loop"),
        ("train.py", "calls note"),
        ("helpers.py", "calls deeper"),
    ]


@pytest.mark.parametrize(
    ("guard", "frequency"),
    [
        ("if i % 10 == 0", Frequency.RARE),
        ("if not i % 10", Frequency.RARE),
        ("if i % 10 != 0", Frequency.BATCH),
        ("if i == 0", Frequency.RARE),
        ("if i > 0", Frequency.BATCH),
        ("if self.logger and (i + 1) % every == 0", Frequency.RARE),
        ("if i % 10 == 0 or i == len(loader) - 1", Frequency.RARE),
        ("if i % 10 == 0 or force", Frequency.BATCH),
        ("if time.time() - last > 5", Frequency.RARE),
        ("if False", Frequency.NEVER),
        ("if TYPE_CHECKING", Frequency.NEVER),
        ("if True", Frequency.BATCH),
        ("if rank == 0", Frequency.BATCH),
        ("for part in parts", Frequency.BATCH),
        ("for row in x", Frequency.ELEMENT),
        ("for n in range(x.size(0))", Frequency.ELEMENT),
    ],
)
def test_guards_and_inner_loops_change_the_frequency(guard, frequency):
    program = (
        TRAIN
        + f"""
    for i, x in enumerate(DataLoader(data)):
        loss = model(x)
        loss.backward()
        {guard}:
            mark("here")
    """
    )
    assert heats(train=program)["here"].frequency is frequency


def test_nothing_after_a_return_or_a_continue_runs():
    program = (
        TRAIN
        + """
    for x in DataLoader(data):
        model(x).backward()
        continue
        mark("dead")
    """
    )
    assert heats(train=program)["dead"].frequency is Frequency.NEVER


@pytest.mark.parametrize(
    ("program", "frequency"),
    [
        ("class A(pl.LightningModule):\n    def training_step(self, batch):\n        mark('x')", Frequency.BATCH),
        ("class A(pl.LightningModule):\n    def on_train_epoch_end(self):\n        mark('x')", Frequency.EPOCH),
        ("class A(TrainerCallback):\n    def on_step_end(self, *a):\n        mark('x')", Frequency.BATCH),
        ("class A(torch.utils.data.Dataset):\n    def __getitem__(self, i):\n        mark('x')", Frequency.SAMPLE),
        ("class A:\n    def __getitem__(self, i):\n        mark('x')\nDataLoader(A())", Frequency.SAMPLE),
        ("def join(rows):\n    mark('x')\nDataLoader(d, collate_fn=join)", Frequency.BATCH),
        ("DataLoader(d, collate_fn=lambda rows: mark('x'))", Frequency.BATCH),
        ("class A(torch.nn.Module):\n    def forward(self, x):\n        mark('x')", Frequency.BATCH),
        ("class A:\n    def forward(self, x):\n        mark('x')", Frequency.ONCE),
        ("@trainer.on(Events.ITERATION_COMPLETED)\ndef f(engine):\n    mark('x')", Frequency.BATCH),
        ("@trainer.on(Events.ITERATION_COMPLETED(every=100))\ndef f(engine):\n    mark('x')", Frequency.RARE),
        (
            "from ignite.engine import Engine\ndef update(engine, batch):\n    mark('x')\nEngine(update)",
            Frequency.BATCH,
        ),
        ("class A:\n    def training_step(self, batch):\n        mark('x')", Frequency.ONCE),
    ],
)
def test_methods_called_by_a_framework_have_its_frequency(program, frequency):
    assert heats(train=textwrap.dedent(TRAIN) + program)["x"].frequency is frequency


def test_relative_imports_name_the_file_beside_and_absolute_ones_the_standard_library():
    train = (
        TRAIN
        + """
    from . import logging as ours
    import logging
    for x in DataLoader(data):
        model(x).backward()
        logging.info(x)
    """
    )
    beside = "def info(x):\n    mark('ours')\n"
    assert heats(pkg__train=train, pkg__logging=beside)["ours"].frequency is Frequency.ONCE


def test_mutually_recursive_functions_are_visited_once():
    program = (
        TRAIN
        + """
    def one(x):
        mark("one")
        return two(x)

    def two(x):
        return one(x) if x else two(one(x))

    for x in DataLoader(data):
        loss = one(x)
        loss.backward()
    """
    )
    assert heats(train=program)["one"].frequency is Frequency.BATCH


def test_a_loop_over_programs_is_not_a_loop_over_batches():
    program = (
        TRAIN
        + """
    def experiment(rate):
        optimizer = torch.optim.SGD(model.parameters(), rate)
        loss = model(1)
        loss.backward()
        optimizer.step()
        mark("inside")

    for rate in (0.1, 0.2):
        experiment(rate)
    """
    )
    assert heats(train=program)["inside"].frequency is not Frequency.BATCH


def test_the_loop_that_steps_around_micro_batches_is_the_batch_loop():
    program = (
        TRAIN
        + """
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1000):
        for micro in range(4):
            model(micro).backward()
        optimizer.step()
        mark("step")
    """
    )
    assert heats(train=program)["step"].frequency is Frequency.BATCH


def test_a_renamed_flag_is_not_evidence():
    """A local name that holds the flag is no argument, so that nothing is known about its value."""
    found = heats(
        train="""
        def step(model, batch, quiet=False):
            silent = quiet
            if silent:
                mark("silent")
            model(batch).mean().backward()

        for batch in loader:
            step(model, batch)
        """
    )
    assert found["silent"].frequency is Frequency.BATCH


def test_a_branch_on_an_argument_that_nobody_passes_is_rare():
    """The defaults are None and an annotated flag, and the training passes neither."""
    found = heats(
        train="""
        def step(model, batch, *, testing: bool = False, path: str | None = None, scale=None):
            if testing and path:
                mark("tested")
            if scale is not None:
                mark("scaled")
            else:
                mark("plain")
            model(batch).mean().backward()

        for batch in loader:
            step(model, batch)
        """
    )
    assert found["tested"].frequency is Frequency.RARE
    assert found["scaled"].frequency is Frequency.RARE
    assert found["plain"].frequency is Frequency.BATCH
