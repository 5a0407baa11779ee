"""A training library with the optimisations built in: torch and numpy only.

    history = Trainer(model, loss, optimizer, Recipe(batch_size=256)).fit(train, valid, epochs=10)

Data is in hotlap.engine.data; errors are drawn as a tree in hotlap.engine.errors.
"""

from __future__ import annotations

from hotlap.engine.callbacks import Callback, Training
from hotlap.engine.log import JsonLines
from hotlap.engine.loggers import MLflow, TensorBoard, WandB
from hotlap.engine.metrics import MAE, RMSE, Accuracy, BinaryF1, Dice, GroupMeans, Mean, Metric
from hotlap.engine.precision import Precisions, PrecisionTrial
from hotlap.engine.rate_range import RateRange
from hotlap.engine.recipe import Checkpoints, Phase, PrecisionGate, Recipe
from hotlap.engine.records import EpochRecord, History, StepRecord
from hotlap.engine.schedule import Cosine, FromTorch, Linear, Schedule, Steps
from hotlap.engine.torch_metrics import TorchMetric
from hotlap.engine.trainer import Trainer

__all__ = [
    "MAE",
    "RMSE",
    "Accuracy",
    "BinaryF1",
    "Callback",
    "Checkpoints",
    "Cosine",
    "Dice",
    "EpochRecord",
    "FromTorch",
    "GroupMeans",
    "History",
    "JsonLines",
    "Linear",
    "MLflow",
    "Mean",
    "Metric",
    "Phase",
    "PrecisionGate",
    "PrecisionTrial",
    "Precisions",
    "RateRange",
    "Recipe",
    "Schedule",
    "StepRecord",
    "Steps",
    "TensorBoard",
    "TorchMetric",
    "Trainer",
    "Training",
    "WandB",
]
