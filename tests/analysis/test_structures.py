"""The analysis finds what runs every batch in programs structured like those of well-known projects."""

from __future__ import annotations

import textwrap

import pytest

from hotlap.analysis.frequency.heat import Side
from hotlap.records.scan_finding import Confidence, Frequency
from tests.analysis.marks import heats

HEAD = """
import functools, time
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from tqdm import tqdm
import pytorch_lightning as pl
from accelerate import Accelerator
from transformers import Trainer, TrainerCallback
"""
RARE, BATCH, EPOCH, ONCE = Frequency.RARE, Frequency.BATCH, Frequency.EPOCH, Frequency.ONCE
FILE = Frequency.FILE
SAMPLE, NEVER = Frequency.SAMPLE, Frequency.NEVER


def frequencies(**programs: str) -> dict[str, Frequency]:
    whole = {name: HEAD + textwrap.dedent(text) for name, text in programs.items()}
    return {name: heat.frequency for name, heat in heats(**whole).items()}


def test_a_base_class_runs_overridden_methods():
    """Template methods: the loop is in the base class, the step in a subclass in another file."""
    base = """
        class BaseTrainer:
            def train(self):
                for epoch in range(self.epochs):
                    self.train_epoch(epoch)
                    self.after()

            def train_epoch(self, epoch):
                raise NotImplementedError

            def after(self):
                mark("after")
    """
    mine = """
        from base import BaseTrainer

        class Mine(BaseTrainer):
            def train_epoch(self, epoch):
                mark("epoch")
                for x in self.loader:
                    self.step(x)

            def step(self, x):
                loss = self.model(x)
                loss.backward()
                self.optimizer.step()
                mark("step")
    """
    assert frequencies(base=base, mine=mine) == {"after": EPOCH, "epoch": EPOCH, "step": BATCH}


def test_a_registry_may_create_any_class_of_a_family():
    """The class is unknown, but all classes with the method share a base class."""
    train = """
        from models import MODELS

        def main(options):
            model = MODELS.get(options["model"])(options)
            for epoch in range(options["epochs"]):
                for data in options["loader"]:
                    model.feed_data(data)
                    model.optimize_parameters()
                model.write_report()
    """
    models = """
        MODELS = Registry("models")

        class BaseModel:
            def write_report(self):
                mark("report")

        @MODELS.register()
        class One(BaseModel):
            def feed_data(self, data):
                mark("fed")

            def optimize_parameters(self):
                self.loss().backward()
                self.optimizer_g.step()
                mark("one")

        @MODELS.register()
        class Two(BaseModel):
            def feed_data(self, data):
                mark("fed, too")

            def optimize_parameters(self):
                self.loss().backward()
                self.optimizer_d.step()
                mark("two")
    """
    found = frequencies(train=train, models=models)
    assert found == {"report": EPOCH, "fed": BATCH, "one": BATCH, "fed, too": BATCH, "two": BATCH}


def test_unrelated_classes_with_a_method_of_the_same_name_are_not_a_family():
    train = """
        def main(model, other, loader):
            for x in loader:
                model(x).backward()
                other.remember(x)
    """
    classes = """
        class Diary:
            def remember(self, x):
                mark("diary")

        class Elephant:
            def remember(self, x):
                mark("elephant")
    """
    assert set(frequencies(train=train, classes=classes).values()) == {ONCE}


def test_functions_passed_to_a_method_that_calls_them_are_followed():
    program = """
        class Learner:
            def with_events(self, function, name):
                self("before_" + name)
                function()

            def fit(self):
                for epoch in range(3):
                    self.with_events(self.one_epoch, "epoch")

            def one_epoch(self):
                mark("epoch")
                for self.x in self.data.train:
                    self.with_events(self.one_batch, "batch")

            def one_batch(self):
                self.with_events(self.backward, "backward")
                self.with_events(self.step, "step")

            def backward(self):
                self.loss.backward()
                mark("backward")

            def step(self):
                self.opt.step()
                mark("step")
    """
    assert frequencies(train=program) == {"epoch": EPOCH, "backward": BATCH, "step": BATCH}


def test_arguments_bound_by_partial_are_not_mistaken_for_later_ones():
    program = """
        def backwards(half, loss, optimizer):
            if half:
                mark("half")
            loss.backward()
            optimizer.step()

        class GAN:
            def train(self):
                run = functools.partial(backwards, self.half)
                for x in self.loader:
                    run(self.model(x), self.opt)
    """
    assert frequencies(train=program) == {"half": BATCH}


def test_a_step_called_only_by_another_project_runs_every_batch():
    """This is a library of models, each with its own step; the loop is in another project."""
    program = """
        class Solver:
            def run_step(self, index, batch):
                loss = self.model(batch)
                loss.backward()
                self.optimizer.step()
                mark("step")

            def save(self):
                mark("save")

        def check_step(model, batch, optimizer):
            model(batch).backward()
            optimizer.step()
            mark("check")
    """
    found = heats(train=HEAD + textwrap.dedent(program))
    assert (found["step"].frequency, found["step"].confidence) == (BATCH, Confidence.MEDIUM)
    assert found["save"].frequency is ONCE
    assert found["check"].frequency is ONCE


def test_gradients_may_be_accumulated_in_another_function():
    """Micro-batches have their own function with a retry around it; the caller makes the optimizer's step."""
    program = """
        class Trainer:
            def fit(self):
                for epoch in range(3):
                    for batch in self.batches():
                        self.train_batch(batch)
                        mark("batch")
                    mark("epoch")

            def train_batch(self, batch):
                while True:
                    try:
                        self.microbatches(batch.split(4))
                        for optimizer in self.optimizers:
                            optimizer.step()
                    except RuntimeError:
                        self.smaller()
                        continue
                    return

            def microbatches(self, parts):
                for part in parts:
                    self.model(part).backward()
                    mark("part")
    """
    assert frequencies(train=program) == {"batch": BATCH, "epoch": EPOCH, "part": BATCH}


def test_a_stepping_loop_around_an_accumulating_loop_is_training():
    program = """
        def train(model, batches, optimizer, steps):
            step = 0
            while step < steps:
                for _ in range(4):
                    model(next(batches)).backward()
                optimizer.step()
                step += 1
                mark("step")
    """
    assert heats(train=HEAD + textwrap.dedent(program))["step"].side is Side.TRAIN


def test_each_piece_of_a_long_sequence_is_a_batch():
    program = """
        def train(model, corpus, optimizer):
            for text in DataLoader(corpus):
                mark("text")
                for i in range(0, text.size(0) - 1, 64):
                    model(text[i : i + 64]).backward()
                    optimizer.step()
                    mark("piece")
    """
    assert frequencies(train=program) == {"text": EPOCH, "piece": BATCH}


@pytest.mark.parametrize(
    ("guard", "frequency"),
    [
        ("if divides(step, 100):", RARE),
        ("if not divides(step, 100): continue", RARE),
        ("if self.log_now:", RARE),
        ("if self.is_due:", RARE),
        ("if self.is_odd:", BATCH),
        ("if rank == 0 and divides(step, 100):", RARE),
        ("if step in self.milestones:", RARE),
        ("if total in self.milestones:", RARE),
        ("if self._first_batch:", RARE),
        ("if done:", RARE),
        ("if 'episode' in info:", RARE),
        ("if loss < best_loss:", RARE),
        ("if self.evaluation_interval(step):", RARE),
        ("if getattr(self, 'table', None) is None:\n                self.table = 1", RARE),
        ("if self.table is None:\n                self._build_table()", RARE),
        ("if x.shape not in self.masks:\n                self.masks[x.shape] = make(x)", RARE),
        ("if x not in self.masks:", BATCH),
        ("if self.scaler is None:", BATCH),
        ("if self.args.plots:", BATCH),
        ("if rank == 0:", BATCH),
        ("if self.debug:", BATCH),
    ],
)
def test_recognises_guards_of_real_programs(guard, frequency):
    body = guard if guard.endswith(("continue", "1", ")")) else f"{guard}\n                pass"
    inner = "            " if guard.endswith("continue") else "                "
    program = f"""
class Trainer:
    def train(self, model, loader, rank, info, done, best_loss):
        for step, x in enumerate(loader):
            total = step + len(loader) * self.epoch
            self.log_now = step % 50 == 0
            loss = model(x)
            loss.backward()
            {body}
{inner}mark("here")

    @property
    def is_due(self):
        return self.step % 100 == 0

    @property
    def is_odd(self):
        return self.odd

def divides(number, by):
    return (number % by) == 0
"""
    assert frequencies(train=program)["here"] is frequency


def test_a_debugging_switch_lowers_the_confidence():
    program = """
        def train(self, model, loader):
            for x in loader:
                model(x).backward()
                if self.debug:
                    mark("here")
    """
    assert heats(train=HEAD + textwrap.dedent(program))["here"].confidence is Confidence.LOW


def test_exception_handling_is_not_hot():
    program = """
        class Odd(Exception):
            def __init__(self, x):
                mark("made")

        def train(model, loader):
            for x in loader:
                model(x).backward()
                try:
                    check(x)
                except ValueError as error:
                    mark("caught")
                    raise Odd(x) from error
    """
    assert frequencies(train=program) == {"made": RARE, "caught": RARE}


@pytest.mark.parametrize("ending", ["break", "return"])
def test_a_loop_left_after_the_first_batch_is_not_a_training_loop(ending):
    program = f"""
        def look(model, loader):
            for x in loader:
                model(x).backward()
                mark("here")
                {ending}
    """
    assert frequencies(train=program) == {"here": ONCE}


@pytest.mark.parametrize(
    "program",
    [
        # Keras-like
        """
        class Keras:
            def fit(self, data):
                for epoch in range(9):
                    self.train_one_epoch(data)
            def train_one_epoch(self, data):
                for batch in data:
                    self.train_step(batch)
            def train_step(self, batch):
                loss = self.compute(batch)
                loss.backward()
                mark("here")
        """,
        # an iterator asked for the next batch
        """
        def train(model, loader, steps):
            batches = iter(loader)
            for _ in tqdm(range(steps)):
                try:
                    x = next(batches)
                except StopIteration:
                    batches = iter(loader)
                    x = next(batches)
                model(x).backward()
                mark("here")
        """,
        # a closure for LBFGS
        """
        def train(model, loader, optimizer):
            for x, y in loader:
                def closure():
                    optimizer.zero_grad()
                    loss = model(x, y)
                    loss.backward()
                    mark("here")
                    return loss
                optimizer.step(closure)
        """,
        # a list of callbacks
        """
        class Callback:
            def on_batch_end(self, loss):
                mark("here")
        class Engine:
            def __init__(self):
                self.callbacks = [Callback()]
            def run(self, model, loader):
                for x in loader:
                    loss = model(x)
                    loss.backward()
                    for callback in self.callbacks:
                        callback.on_batch_end(loss)
        """,
        # loaders from a configuration
        """
        def build_loader(config):
            return DataLoader(config.data, **config.loader)
        def evaluate(model, config):
            loader = build_loader(config)
            with torch.no_grad():
                for x in loader:
                    model(x)
                    mark("here")
        """,
        # Accelerate
        """
        def main():
            accelerator = Accelerator()
            model, optimizer, loader = accelerator.prepare(make(), sgd(), DataLoader(data))
            for epoch in range(3):
                for step, batch in enumerate(loader):
                    with accelerator.accumulate(model):
                        accelerator.backward(model(**batch).loss)
                        optimizer.step()
                    mark("here")
        """,
        # DDP
        """
        def run(rank, model, loader):
            model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
            for x, y in loader:
                loss = model(x.to(rank)).sum()
                loss.backward()
                if rank == 0:
                    mark("here")
        """,
        # a generator of batches
        """
        def batches(data):
            for start in range(0, len(data), 32):
                yield data[start : start + 32]
        def train(model, data):
            for x in batches(data):
                model(x).backward()
                mark("here")
        """,
        # a GAN
        """
        def train(g, d, loader, opt_g, opt_d):
            for real in loader:
                for _ in range(5):
                    d_loss = d(real) - d(g(noise()))
                    d_loss.backward()
                    opt_d.step()
                g_loss = -d(g(noise()))
                g_loss.backward()
                opt_g.step()
                mark("here")
        """,
        # reinforcement learning
        """
        def learn(agent, env, steps):
            state = env.reset()
            for step in range(steps):
                action = agent.act(state)
                state, reward, done, info = env.step(action)
                loss = agent.loss(state, reward)
                loss.backward()
                agent.optimizer.step()
                mark("here")
        """,
        # `while True`
        """
        step = 0
        while True:
            loss = model(get())
            loss.backward()
            optimizer.step()
            mark("here")
            step += 1
            if step > 1000:
                break
        """,
        # a custom optimizer, and a metric
        "class Lion(torch.optim.Optimizer):\n    def step(self, closure=None):\n        mark('here')",
        "class Recall(Metric):\n    def update(self, x, y):\n        mark('here')",
        "class Mine(Trainer):\n    def compute_loss(self, model, inputs):\n        mark('here')",
        "class Log(TrainerCallback):\n    def on_step_end(self, *args, **kwargs):\n        mark('here')",
        "class Net(pl.LightningModule):\n    def validation_step(self, batch, i):\n        mark('here')",
    ],
)
def test_recognises_the_batch_loop_of_programs_of_every_shape(program):
    assert frequencies(train=program)["here"] is BATCH


def test_a_stream_gives_a_sample_each_time_it_yields():
    program = """
        class Lines(IterableDataset):
            def __iter__(self):
                mark("begun")
                for file in self.files:
                    mark("file")
                    for line in open(file):
                        mark("line")
                        yield parse(line)

        def parse(line):
            mark("parsed")
    """
    found = frequencies(train=program)
    assert found["line"] is found["parsed"] is SAMPLE
    assert {found["begun"], found["file"]} <= {ONCE, EPOCH, FILE}


@pytest.mark.parametrize(
    "program",
    [
        "class Net(pl.LightningModule):\n    def configure_optimizers(self):\n        mark('here')",
        "class Net(nn.Module):\n    def __init__(self):\n        mark('here')\n    def forward(self, x):\n        pass",
        "for epoch in range(3):\n    for x in DataLoader(d):\n        net(x).backward()\n    mark('here')",
        "class Data(Dataset):\n    def __init__(self):\n        mark('here')",
        "def report(path):\n    for row in open(path):\n        mark('here')",
    ],
)
def test_code_that_only_looks_hot_is_not(program):
    assert frequencies(train=program)["here"] in (ONCE, EPOCH)


def test_code_run_once_per_fold_does_not_run_every_epoch():
    program = """
        def train(model, loader):
            for epoch in range(10):
                for x in loader:
                    model(x).backward()
                mark("epoch")

        for fold in folds:
            train(make(), loaders(fold))
            mark("fold")
    """
    found = heats(train=HEAD + textwrap.dedent(program))
    assert (found["epoch"].frequency, found["epoch"].rarely) == (EPOCH, False)
    assert found["fold"].rarely


def test_phases_of_an_epoch_run_every_epoch():
    program = """
        def train(model, loaders):
            for epoch in range(10):
                for phase in ("train", "val"):
                    for x in loaders[phase]:
                        loss = model(x)
                        if phase == "train":
                            loss.backward()
                    mark("phase")
    """
    found = heats(train=HEAD + textwrap.dedent(program))
    assert (found["phase"].frequency, found["phase"].rarely) == (EPOCH, False)


def test_a_redefined_function_is_a_different_one():
    program = """
        def run(model, loader):
            for x in loader:
                for y in x:
                    model(y)

        def run(model, loader):
            for x in loader:
                model(x).backward()
                mark("second")

        class Step:
            @property
            def due(self):
                return self.count % 10 == 0

            @due.setter
            def due(self, value):
                for one in value:
                    mark("set")

        def train(model, loader, step: Step):
            for x in loader:
                model(x).backward()
                if step.due:
                    mark("due")
    """
    assert frequencies(train=program) == {"second": BATCH, "set": ONCE, "due": RARE}


def test_files_that_star_import_each_other_are_visited_once():
    """Thirty files each import all names of all others; following every path would never end."""
    names = [f"part{number}" for number in range(30)]
    stars = "\n".join(f"from {name} import *" for name in names)
    parts = {name: f"{stars}\nunknown_{name}(1)\n" for name in names}
    parts["part29"] += "def step(x):\n    mark('step')\n"
    main = """
        from part0 import *
        for x in DataLoader(data):
            model(x).backward()
            step(x)
            nowhere(x)
    """
    assert frequencies(main=main, **parts) == {"step": BATCH}


def test_work_on_each_of_many_files_has_a_frequency_of_its_own():
    program = """
        def prepare(folder):
            mark("before")
            for path in sorted(folder.glob("*.csv")):
                mark("file")
                clean(path)

        def clean(path):
            mark("cleaned")
            for row in range(3):
                mark("row")

        def fit(model, loader, optimizer):
            for epoch in range(3):
                for x in loader:
                    model(x).backward()
                    optimizer.step()
                    clean(x)
    """
    found = frequencies(train=program)
    assert found == {"before": ONCE, "file": FILE, "cleaned": BATCH, "row": BATCH}
    alone = program.replace("clean(x)", "pass")
    assert frequencies(train=alone) == {"before": ONCE, "file": FILE, "cleaned": FILE, "row": FILE}
