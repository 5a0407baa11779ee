"""TensorBoard tags: losses, scores and built-in fields of the same name do not overwrite each other."""

from __future__ import annotations

from hotlap.engine import EpochRecord, TensorBoard


class Writer:
    def __init__(self):
        self.values = {}

    def add_scalar(self, name, value, step):
        assert name not in self.values
        self.values[name] = value


def written(*, losses, scores):
    sink = TensorBoard.__new__(TensorBoard)
    sink._writer = Writer()
    sink.write(EpochRecord(1, 3.0, scores, 9.0, 0.0, 0.0, 70, 8, 0.1, losses, {}))
    return sink._writer.values


OWN = {"epoch/loss": 3.0, "epoch/seconds": 9.0, "epoch/learning_rate": 0.1}


def test_a_score_named_like_a_loss_gets_its_own_tag():
    found = written(losses={"box": 1.0, "class": 2.0}, scores={"box": 0.5, "loss": 0.25, "rmse": 0.125})
    parts = {"epoch/box": 1.0, "epoch/class": 2.0}
    assert found == {**OWN, **parts, "valid/box": 0.5, "valid/loss": 0.25, "epoch/rmse": 0.125}


def test_a_loss_part_named_like_a_built_in_field_gets_its_own_tag():
    found = written(losses={"seconds": 1.0}, scores={"seconds": 2.0})
    assert found == {**OWN, "part/seconds": 1.0, "valid/seconds": 2.0}
