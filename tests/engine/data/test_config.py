"""Configurations: templates of the reports, files that override them, and errors that name file, key and remedy."""

import json
import sys
from dataclasses import dataclass, field

import pytest

from hotlap.engine.config import ConfigInvalid, read, value
from hotlap.engine.config_templates import SCHEMAS, load, template
from hotlap.engine.schedule import Linear


def written(folder, text, name="run.toml"):
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_template_is_complete_and_makes_a_recipe(name):
    made = template(name)
    recipe = made.training.recipe()
    assert recipe.batch_size == made.training.batch_size >= 16
    assert recipe.clip == made.training.clip


def test_the_templates_hold_the_values_of_the_reports():
    lstm, small = template("lstm"), template("lstm-small-memory")
    assert (lstm.model.lookback, lstm.training.batch_size, lstm.training.clip) == (150, 256, 0.5)
    assert (small.model.lookback, small.training.batch_size, small.loading.threads) == (100, 128, 1)
    assert template("gru").model.cell == "gru"
    assert template("fnn").training.batch_size == 4096
    assert template("leak").training.batch_size == 5632
    assert template("leak").training.evaluation_batch == 2048
    assert template("banknotes").training.batch_size == 16


def test_two_phases_become_phases_of_the_recipe():
    made = template("banknotes")
    first, second = made.training.phases(("backbone.",))
    assert (first.epochs, first.frozen, first.learning_rate) == (3, ("backbone.",), 0.002)
    assert (second.epochs, second.frozen, second.learning_rate) == (9, (), 0.001)
    assert made.training.recipe().schedule == Linear(end=0.05, by="epoch")
    assert len(template("banknotes", training={"frozen_epochs": 0}).training.phases(("backbone.",))) == 1
    with pytest.raises(
        ConfigInvalid, match=r"template banknotes: training.frozen_epochs = 12 leaves none of the 12 epochs"
    ):
        template("banknotes", training={"frozen_epochs": 12})


def test_a_file_overrides_only_what_it_names(tmp_path):
    path = written(
        tmp_path, 'template = "lstm"\n[model]\nlookback = 200\n[training]\nclip = "none"\nlearning_rate = 1\n'
    )
    made = load(path)
    assert (made.model.lookback, made.model.hidden, made.training.batch_size) == (200, 64, 256)
    assert made.training.clip is None
    assert made.training.learning_rate == 1.0
    as_json = {"template": "lstm", "model": {"lookback": 200}, "training": {"clip": None, "learning_rate": 1}}
    assert load(written(tmp_path, json.dumps(as_json), "run.json")) == made


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("[training]\nbatch_sise = 3", r"unknown key training.batch_sise; did you mean training.batch_size\?"),
        ("[training]\nBATCH_SIZE = 3", r"unknown key training.BATCH_SIZE; did you mean training.batch_size\?"),
        ("[trainning]\nepochs = 3", r"unknown key trainning; did you mean training\?"),
        ("[loading]\nqqq = 3", "unknown key loading.qqq; known here: threads, ahead"),
        ('[training]\nbatch_size = "256"', 'training.batch_size = "256" is text; it must be a whole number'),
        ("[training]\nbatch_size = 2.5", "training.batch_size = 2.5 is a number; it must be a whole number"),
        ("[training]\nbatch_size = true", "training.batch_size = true is true or false; it must be a whole number"),
        ("[training]\nbatch_size = 0", "training.batch_size = 0 is out of range; it must be at least 1"),
        (
            "[training]\nlearning_rate = -1e-3",
            "learning_rate = -0.001 is out of range; it must be above 0 and at most 10",
        ),
        ("[training]\nlearning_rate = nan", "training.learning_rate = nan is not a finite number"),
        (
            '[training]\nprecision = "fp8"',
            'precision = "fp8" is text; it must be one of "auto", "fp32", "tf32", "bf16", "fp16"',
        ),
        ("[training]\nclip = [1]", r'training.clip = \[1\] is a list; it must be a number or "none"'),
        ("[model]\ndropout = 1.0", "model.dropout = 1.0 is out of range; it must be at least 0 and below 1"),
        ("training = 3", "training must be a section with keys, not a whole number"),
        ("[training\n", r"at line 2"),
    ],
)
def test_errors_name_the_file_and_the_key(lines, message, tmp_path):
    path = written(tmp_path, f'template = "lstm"\n{lines}\n')
    with pytest.raises(ConfigInvalid, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "x = 1", "template is missing; begin with template = one of lstm, "),
        ("a.toml", 'template = "lsmt"', r"template = 'lsmt' is not known; did you mean 'lstm'\? Use one of lstm, "),
        ("a.toml", 'template = "qqq"', "template = 'qqq' is not known; use one of lstm, "),
        ("a.yaml", "x: 1", "a .toml or .json file"),
        ("a.json", "[1]", "must hold keys and values, not a list"),
        ("a.json", "{", "line 1 column 2"),
        ("a.json", '{"a": {"b": 1, "c": 2, "b": 1}}', "a.json: the key b is given twice in one section"),
    ],
)
def test_rejects_files_that_are_not_configurations(name, text, message, tmp_path):
    with pytest.raises(ConfigInvalid, match=message):
        load(written(tmp_path, text, name))


def test_rejects_excessive_nesting_and_oversized_numbers(tmp_path):
    with pytest.raises(ConfigInvalid, match=r"a.json: .* nested too deeply"):
        load(written(tmp_path, '{"a":' * 100_000, "a.json"))
    with pytest.raises(ConfigInvalid, match=r"template lstm: training.clip = 10+… is too large for a number"):
        template("lstm", training={"clip": 10**400})


def test_names_a_missing_file(tmp_path):
    with pytest.raises(ConfigInvalid, match=r"gone.toml: there is no such file"):
        load(tmp_path / "gone.toml")


def test_python_without_a_toml_parser_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(ConfigInvalid, match="pip install tomli, or write the file as JSON"):
        load(written(tmp_path, 'template = "lstm"'))


@dataclass(frozen=True)
class Head:
    widths: tuple[int, ...] = value(at_least=1)
    name: str = "head"


@dataclass(frozen=True)
class Own:
    head: Head
    rate: float = value(0.1, above=0)
    tags: tuple[str, ...] = field(default=())


def test_a_custom_schema_is_read_the_same_way(tmp_path):
    path = written(tmp_path, 'tags = ["a", "b"]\n[head]\nwidths = [8, 4]\n')
    assert read(path, Own) == Own(Head((8, 4)), 0.1, ("a", "b"))
    with pytest.raises(ConfigInvalid, match=r"head.widths\[1\] = \"4\" is text; it must be a whole number"):
        read(written(tmp_path, '[head]\nwidths = [8, "4"]\n'), Own)
    with pytest.raises(ConfigInvalid, match=r"head.widths = 0 is out of range"):
        read(written(tmp_path, "[head]\nwidths = [8, 0]\n"), Own)
    with pytest.raises(ConfigInvalid, match=r"head.widths is missing"):
        read(written(tmp_path, "[head]\n"), Own)


@dataclass(frozen=True)
class Rich:
    head: Head | None = None
    pair: tuple[int, float] = (1, 1.0)
    sizes: list[int] = field(default_factory=list, metadata=value(at_least=1).metadata)
    rates: dict[str, float] = field(default_factory=dict, metadata=value(above=0).metadata)
    heads: list[Head] = field(default_factory=list)


def test_reads_optional_sections_pairs_lists_and_tables(tmp_path):
    given = {"head": {"widths": [3]}, "pair": [1, 2], "sizes": [4], "rates": {"a": 1}, "heads": [{"widths": [5]}]}
    made = read(written(tmp_path, json.dumps(given), "run.json"), Rich)
    assert made == Rich(Head((3,)), (1, 2.0), [4], {"a": 1.0}, [Head((5,))])
    assert isinstance(made.rates["a"], float)
    assert read(written(tmp_path, 'head = "none"'), Rich).head is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("head = 3", 'head = 3 is a whole number; it must be a section with keys or "none"'),
        ("head = {width = 3}", r"unknown key head.width; did you mean head.widths\?"),
        ("pair = [1.5, 2]", r"pair\[0\] = 1.5 is a number; it must be a whole number"),
        ("pair = [1, 2, 3]", "pair has 3 values; it must be a list of 2: a whole number, a number"),
        ("pair = 1", "it must be a list of 2: a whole number, a number"),
        ('sizes = ["a"]', r'sizes\[0\] = "a" is text; it must be a whole number'),
        ("sizes = 1", "it must be a list, each a whole number"),
        ("sizes = [1, 0]", "sizes = 0 is out of range; it must be at least 1"),
        ("rates = 1", "it must be a section, each value a number"),
        ('rates = {a = "b"}', 'rates.a = "b" is text; it must be a number'),
        ("rates = {a = -1}", "rates = -1.0 is out of range; it must be above 0"),
        ("heads = [{}]", r"heads\[0\].widths is missing"),
    ],
)
def test_errors_inside_nested_values_name_their_place(line, message, tmp_path):
    with pytest.raises(ConfigInvalid, match=message):
        read(written(tmp_path, line), Rich)
