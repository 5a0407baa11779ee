"""The JSON of a profile is one object with both records, which the codec reads back."""

import json

import pytest

from hotlap.diagnose import diagnose
from hotlap.records.codec import from_json
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.observation import Observation
from hotlap.report import as_json
from tests.observations import input_bound, not_a_number, partial


@pytest.mark.parametrize("scenario", [input_bound, partial, not_a_number])
def test_both_records_are_read_back_as_saved(scenario):
    seen = scenario()
    data = json.loads(as_json(seen, diagnose(seen)), parse_constant=pytest.fail)
    assert set(data) == {"observation", "diagnosis"}
    assert from_json(Diagnosis, json.dumps(data["diagnosis"]), "test") == diagnose(seen)
    assert repr(from_json(Observation, json.dumps(data["observation"]), "test")) == repr(seen)
