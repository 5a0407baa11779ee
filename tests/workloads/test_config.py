"""`fast.py --config` takes a template or a file below the command line; every field applies or is rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from workload_modules import Workload, load_workload, run_in_process

from hotlap.engine.schedule import Rates

CPU = torch.device("cpu")


def written(folder: Path, text: str, name: str = "run.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def understood(workload: Workload, folder: Path, *words: str):
    """The settings and the recipe that a script with a common parser makes of its arguments."""
    settings, given, *_ = workload.fast.read_arguments([*words, "--data", str(folder), "--device", "cpu"])
    return settings, workload.fast.training_of(settings, given, CPU).recipe()


def test_a_template_sets_the_model_and_the_training(tmp_path) -> None:
    settings, recipe = understood(load_workload("battery_lstm"), tmp_path, "--config", "gru")
    assert (settings.cell, settings.lookback, settings.hidden, settings.layers) == ("gru", 150, 64, 1)
    assert (recipe.batch_size, recipe.clip, recipe.evaluation_batch, settings.epochs) == (256, 0.5, None, 3)
    settings, recipe = understood(load_workload("bloom"), tmp_path, "--config", "bloom")
    assert (settings.hidden, settings.layers, recipe.batch_size, recipe.clip) == (512, 2, 32, None)


def test_options_override_the_configuration_and_defaults_apply_without_one(tmp_path) -> None:
    workload = load_workload("battery_lstm")
    options = ["--batch", "7", "--lookback=9", "--epochs", "2"]
    settings, recipe = understood(workload, tmp_path, *options, "--config", "lstm-small-memory", "--seed", "5")
    assert (settings.lookback, settings.hidden, settings.epochs, recipe.batch_size, recipe.seed) == (9, 64, 2, 7, 5)
    settings, recipe = understood(workload, tmp_path, "--size", "tiny")
    assert settings == workload.naive.defaults("tiny")
    assert (recipe.batch_size, recipe.clip, recipe.evaluation_batch, recipe.precision) == (64, 0.5, 2048, "tf32")


def test_every_field_of_a_file_reaches_the_recipe(tmp_path, capsys) -> None:
    lines = (
        'clip = "none"\nema = 0.9\naccumulate = 2\nwarmup = 3\nschedule = "cosine"\nprecision = "bf16"\npatience = 4'
    )
    path = written(tmp_path, f'template = "fnn"\n[model]\nhidden = 8\n[training]\nweight_decay = 0.5\n{lines}\n')
    workload = load_workload("battery_fnn")
    settings, recipe = understood(workload, tmp_path, "--config", path)
    assert (settings.hidden, settings.layers) == (8, 2)
    assert (recipe.clip, recipe.ema, recipe.accumulate, recipe.warmup, recipe.patience) == (None, 0.9, 2, 3, 4)
    assert type(recipe.schedule).__name__ == "Cosine"
    assert recipe.precision == "fp32"
    assert "precision bf16 is for CUDA; using float32 on cpu" in capsys.readouterr().err
    _, given, *_ = workload.fast.read_arguments(["--config", path, "--data", str(tmp_path), "--device", "cpu"])
    model = workload.naive.build_model(settings)
    optimizer = given.decay(workload.naive.build_optimizer(model, settings))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "lstn"], "lstn is neither a file nor a template; templates are lstm, lstm-small-memory, gru"),
        (["--config", "bloom"], "bloom: template bloom is for another pipeline; use lstm or lstm-small-memory or gru"),
        (["--config", "gone.toml"], "gone.toml: there is no such file"),
        (["--config"], "expected one argument"),
    ],
)
def test_reports_a_missing_configuration(words, message, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        load_workload("battery_lstm").fast.main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('template = "lstm"\n[training]\nbatch_sise = 3', "training.batch_sise; did you mean training.batch_size?"),
        ('template = "lstm"\n[training]\nbatch_size = 0', "training.batch_size = 0 is out of range"),
        ('template = "leak"', "template leak is for another pipeline"),
        ("[training]\nepochs = 3", "template is missing; begin with template = one of"),
    ],
)
def test_reports_a_wrong_file_with_its_key(text, message, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        load_workload("battery_lstm").fast.main(["--config", written(tmp_path, text)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_unsupported_fields_are_rejected_or_reported(tmp_path, capsys) -> None:
    workload = load_workload("battery_lstm")
    with pytest.raises(SystemExit) as ended:
        workload.fast.main(["--config", written(tmp_path, 'template = "lstm"\n[model]\ndropout = 0.2')])
    assert ended.value.code == 2
    assert "model.dropout = 0.2: this model has none" in capsys.readouterr().err
    understood(workload, tmp_path, "--config", "lstm-small-memory")
    assert "loading.threads, loading.ahead: not used" in capsys.readouterr().err


def test_help_describes_the_configuration(capsys) -> None:
    for name in ("battery_lstm", "leak"):
        with pytest.raises(SystemExit) as ended:
            load_workload(name).fast.main(["--help"])
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        assert "--config FILE|TEMPLATE" in printed
        assert "--batch-size" in printed


def handed_over(workload: Workload, monkeypatch, folder: Path, *words: str):
    """The settings and the training that a script with its own phases or flags makes of its arguments."""
    seen = []
    monkeypatch.setattr(workload.fast, "train", lambda *parts: seen.append(parts) or 1.0)
    assert workload.fast.main([*words, "--data", str(folder), "--device", "cpu"]) == 0
    settings, arguments, given, *_ = seen[0]
    return settings, workload.fast.training_of(settings, arguments, given, CPU)


def test_a_file_sets_the_phases_and_the_detector(tmp_path, monkeypatch) -> None:
    text = 'template = "banknotes"\n[model]\nwidth = 0.25\n[training]\nfrozen_epochs = 2\nschedule = "none"\n'
    words = ("--config", written(tmp_path, text), "--epochs", "5", "--full-learning-rate", "0.5")
    workload = load_workload("banknotes")
    settings, training = handed_over(workload, monkeypatch, tmp_path, *words)
    assert (settings.width, settings.depth, settings.batch_size) == (0.25, 0.33, 16)
    recipe = workload.fast.recipe_of(settings, training, tmp_path)
    first, second = recipe.phases
    assert (first.epochs, first.frozen, first.learning_rate) == (2, ("backbone.",), 0.002)
    assert (second.epochs, second.frozen, second.learning_rate) == (3, (), 0.5)
    assert (recipe.schedule, recipe.precision, recipe.channels_last) == (None, "fp32", True)


def test_without_a_file_the_phases_are_those_of_the_naive_script(tmp_path, monkeypatch) -> None:
    workload = load_workload("banknotes")
    settings, training = handed_over(workload, monkeypatch, tmp_path, "--size", "report")
    recipe = workload.fast.recipe_of(settings, training, tmp_path)
    assert settings == workload.naive.defaults("report")
    for phase, own in zip(recipe.phases, workload.naive.phases(settings), strict=True):
        rates = Rates([1.0], phase.schedule or recipe.schedule, 0, phase.epochs, 1)
        for number, epoch in enumerate(own.epochs):
            rate = phase.learning_rate * rates.table(number)[0, 0]
            assert rate == pytest.approx(workload.naive.learning_rate_at(own, epoch))


def test_flags_of_leak_override_its_template(tmp_path, monkeypatch) -> None:
    workload = load_workload("leak")
    settings, training = handed_over(workload, monkeypatch, tmp_path, "--config", "leak")
    assert (settings.batch_size, training.evaluation_batch, training.compile) == (5632, 2048, "auto")
    assert (training.drop_last, training.channels_last, training.weight_decay) == (True, True, 0.01)
    words = ("--config", "leak", "--compile", "--precision", "tf32")
    _, training = handed_over(workload, monkeypatch, tmp_path, *words)
    assert (training.compile, training.precision) == ("on", "tf32")
    _, training = handed_over(workload, monkeypatch, tmp_path, "--size", "tiny")
    assert (training.batch_size, training.compile, training.precision, training.drop_last) == (64, "off", "tf32", True)


def test_training_follows_the_file(data_root, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path))
    workload = load_workload("battery_fnn")
    text = 'template = "fnn"\n[model]\nhidden = 3\n[training]\nepochs = 2\nbatch_size = 80\n'
    words = ["--size", "tiny", "--data", str(workload.data.ensure("tiny", root=data_root)), "--out", str(tmp_path)]
    outcome = run_in_process(workload.fast.main, capsys, *words, "--config", written(tmp_path, text), "--device", "cpu")
    assert len(outcome.losses) == 2
    state = torch.load(tmp_path / "last.pt", weights_only=True)
    assert (state["about"]["batch_size"], state["place"]["steps"]) == (80, 2 * 120)
    assert state["model"]["0.weight"].shape == (3, 6)
