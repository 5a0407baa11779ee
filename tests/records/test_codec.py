"""Records survive JSON, and their types are the schema."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest

from hotlap.errors import RecordUnreadable
from hotlap.records.codec import SCHEMA, from_json, to_json
from hotlap.records.diagnosis import Diagnosis, Finding
from hotlap.records.observation import CodeLine, Observation
from hotlap.records.part import Counts, Part
from hotlap.records.session import Session
from tests import observations

SCENARIOS = [
    observations.observation,
    observations.on_cuda,
    observations.input_bound,
    observations.sync_bound,
    observations.launch_bound,
    observations.two_ranks,
    observations.partial,
]


def diagnosis() -> Diagnosis:
    finding = Finding(
        code="sync-in-loop",
        title="`loss.item()` waits for the device at every step",
        evidence="1.0 a step, 3.2 ms",
        advice="keep the loss on the device – read it every 100 steps",
        place=CodeLine(file="/home/änn/train.py", line=31, function="main"),
        ms_per_step=3.2,
        at_most=1.4,
    )
    return Diagnosis(
        schema=SCHEMA,
        verdict="sync-bound",
        sentence="It waits.",
        findings=(finding, replace(finding, place=None)),
        unknowns=("cannot tell X, because …",),
    )


@pytest.mark.parametrize("make", SCENARIOS)
def test_an_observation_is_read_back_as_saved(make):
    record = make()
    assert from_json(Observation, to_json(record), "it") == record


def test_a_diagnosis_is_read_back_as_saved():
    assert from_json(Diagnosis, to_json(diagnosis()), "it") == diagnosis()


def test_a_part_and_a_session_are_read_back_as_saved():
    counts = Counts(optimizers_made=1, optimizer_steps=2, loaders_made=3, batches=4, backwards=5)
    part = Part(
        schema=SCHEMA,
        pid=7,
        rank=0,
        world_size=1,
        complete=True,
        counts=counts,
        trace_file=None,
        trace_steps=0,
        observation=observations.observation(),
    )
    assert from_json(Part, to_json(part), "it") == part
    session = Session(
        schema=SCHEMA,
        folder="/tmp/x",
        agent="a:b",
        steps=None,
        warmup=3,
        max_seconds=1.5,
        full=False,
        ceiling=True,
        trace=False,
        started=1e9,
    )
    assert from_json(Session, to_json(session), "it") == session


def test_nan_and_infinity_survive_in_strict_json():
    record = replace(observations.observation(), losses=(1.0, math.nan, math.inf, -math.inf))
    text = to_json(record)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(text, parse_constant=refuse)
    value, nan, high, low = from_json(Observation, text, "it").losses
    assert (value, high, low) == (1.0, math.inf, -math.inf)
    assert math.isnan(nan)


def test_whole_numbers_are_read_as_floats_where_a_float_is_expected():
    """Another tool may write 10 for 10.0."""
    data = json.loads(to_json(observations.observation()))
    data["samples_per_second"] = 640
    record = from_json(Observation, json.dumps(data), "it")
    assert record.samples_per_second == 640.0
    assert isinstance(record.samples_per_second, float)


def test_every_digit_of_a_time_is_preserved():
    record = replace(observations.observation(), step_ms=(0.1 + 0.2, 1e-7, 123456789.123456789))
    assert from_json(Observation, to_json(record), "it").step_ms == record.step_ms


def test_fields_of_a_later_minor_version_are_ignored():
    data = json.loads(to_json(diagnosis()))
    data["mood"] = "hopeful"
    data["findings"][0]["colour"] = "red"
    assert from_json(Diagnosis, json.dumps(data), "it") == diagnosis()


def test_rejects_a_newer_schema_with_the_command_to_type():
    data = json.loads(to_json(diagnosis()))
    data["schema"] = SCHEMA + 1
    with pytest.raises(RecordUnreadable, match=rf"run/diagnosis.json has schema {SCHEMA + 1}.*pip install -U hotlap"):
        from_json(Diagnosis, json.dumps(data), "run/diagnosis.json")


@pytest.mark.parametrize("text", ["", "{", "not json", '{"schema": 1'])
def test_rejects_a_damaged_file_by_name(text):
    with pytest.raises(RecordUnreadable, match=r"run/diagnosis.json is not valid JSON.*run the command again"):
        from_json(Diagnosis, text, "run/diagnosis.json")


def changed(**values) -> str:
    return json.dumps({**json.loads(to_json(diagnosis())), **values})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[]", "it should be dict, not list"),
        ("null", "it should be dict, not NoneType"),
        ("3", "it should be dict, not int"),
        (changed(verdict=None), "verdict should be str, not NoneType"),
        (changed(findings={}), "findings should be list, not dict"),
        (changed(findings=[3]), r"findings\[0\] should be dict, not int"),
        (changed(unknowns=["a", 1]), r"unknowns\[1\] should be str, not int"),
        (changed(schema=True), "schema should be int, not bool"),
        (changed(schema="1"), "schema should be int, not str"),
        ("{}", "schema"),
    ],
)
def test_rejects_values_of_the_wrong_type_with_their_path(text, complaint):
    with pytest.raises(RecordUnreadable, match=complaint):
        from_json(Diagnosis, text, "run/diagnosis.json")


@pytest.mark.parametrize("value", ["fast", None, [], True, {}])
def test_rejects_a_value_that_is_not_a_number_with_its_path(value):
    data = json.loads(to_json(diagnosis()))
    data["findings"][1]["at_most"] = value
    with pytest.raises(RecordUnreadable, match=r"findings\[1\]\.at_most"):
        from_json(Diagnosis, json.dumps(data), "it")


def test_a_nested_field_is_named_by_its_full_path():
    data = json.loads(to_json(diagnosis()))
    data["findings"][0]["place"]["line"] = 3.5
    with pytest.raises(RecordUnreadable, match=r"findings\[0\]\.place\.line should be int, not float"):
        from_json(Diagnosis, json.dumps(data), "it")


def test_a_value_of_a_mapping_is_named_by_its_key():
    data = json.loads(to_json(observations.observation()))
    data["shares"]["data"] = [1]
    with pytest.raises(RecordUnreadable, match=r"shares\.data should be float, not list"):
        from_json(Observation, json.dumps(data), "it")


def test_a_missing_field_is_named():
    data = json.loads(to_json(diagnosis()))
    del data["findings"][0]["advice"]
    with pytest.raises(RecordUnreadable, match="advice"):
        from_json(Diagnosis, json.dumps(data), "it")


def test_a_field_with_a_default_may_be_missing():
    data = json.loads(to_json(observations.sync_bound()))
    del data["syncs"][0]["via"]
    assert from_json(Observation, json.dumps(data), "it").syncs[0].via is None


def test_text_of_any_language_stays_readable():
    text = to_json(diagnosis())
    assert "/home/änn/train.py" in text
    assert "–" in text


def test_a_file_name_that_is_not_unicode_can_still_be_saved():
    """Python represents undecodable bytes of a path as lone surrogates, which must not make a run folder unreadable."""
    record = replace(observations.observation(), directory="/data/\udcff")
    text = to_json(record)
    text.encode("utf-8")
    assert from_json(Observation, text, "it").directory == "/data/\udcff"


def test_rejects_a_deeply_nested_file_without_crashing():
    with pytest.raises(RecordUnreadable):
        from_json(Diagnosis, "[" * 100_000 + "]" * 100_000, "it")


def test_records_cannot_be_changed():
    with pytest.raises(AttributeError):
        diagnosis().verdict = "balanced"  # type: ignore[misc]


def test_a_record_without_fields_works():
    @dataclass(frozen=True)
    class Empty:
        pass

    assert from_json(Empty, to_json(Empty()), "it") == Empty()
