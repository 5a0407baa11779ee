"""The entry point: `Trainer(model, loss, optimizer, recipe).fit(train, valid, epochs=…)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hotlap.engine import activations, checkpoints, loop, precision, rate_range
from hotlap.engine.arguments import require_kinds, require_names
from hotlap.engine.arithmetic import computing, device_from, recomputing
from hotlap.engine.callbacks import AnyCallback, Callbacks
from hotlap.engine.checks import (
    facts_of,
    is_float32,
    is_sparse,
    phases_for,
    require_in_place,
    require_known,
    require_metrics,
    require_repeatable,
    require_shareable,
)
from hotlap.engine.closing import close
from hotlap.engine.data.given import AnyData, source_of
from hotlap.engine.display import Shown, display_for
from hotlap.engine.errors import BadRecipe, CaptureFailed, ExportFailed
from hotlap.engine.evaluation import Evaluation, EvaluationByStep, inferring, predicted
from hotlap.engine.export import export
from hotlap.engine.failures import naming_lost_processes, print_errors_once
from hotlap.engine.geometry import lay_out
from hotlap.engine.interrupts import Interrupts
from hotlap.engine.log import Log, Sink, to_stderr
from hotlap.engine.metrics import Mean
from hotlap.engine.optimizers import make_fast, require_plain_step, why_not_captured
from hotlap.engine.parts import Parts
from hotlap.engine.precision import Precisions
from hotlap.engine.processes import Distributed, Processes, join, local_device, require_alone, started_together
from hotlap.engine.rate_range import RateRange
from hotlap.engine.recipe import LOW, Phase, Recipe
from hotlap.engine.recorder import Recorder, own_stream, recorder_for
from hotlap.engine.records import History
from hotlap.engine.recurrent import carrying, flatten, require_order
from hotlap.engine.run import Run
from hotlap.engine.seam import AnySource, Batch
from hotlap.engine.several import AnyOptimizers, Several, each, one_optimizer
from hotlap.engine.sharding import is_sharded, shard
from hotlap.engine.snapshot import seed_streams
from hotlap.engine.torch_metrics import AnyMetric, own_metrics
from hotlap.engine.update import Average, Forward, beside

Evaluate = Callable[[nn.Module], Mapping[str, float]]
Prepared = tuple[AnySource, AnySource | None, tuple[Phase, ...]]


class Trainer:
    """Trains `model(*inputs)` by `loss(outputs, *targets)`: the first `inputs` tensors of a batch go to the model.

    For anything else give `step(model, batch)`, which returns a loss or a dict of losses, in place of `loss`. Of
    several optimizers, those in a list all step along the one loss, and those in a dict along the part they name.
    `metrics` are computed on the validation split, `train_metrics` within the steps; `evaluate(model)` returns scores
    of the user's own. `say` gets one line for each decision. `progress` shows how far the training is: a line that
    changes in a terminal or notebook, elsewhere one an epoch, and none where callbacks report themselves; a function
    gets a line a second.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any] | None,
        optimizer: AnyOptimizers,
        recipe: Recipe,
        *,
        inputs: int = 1,
        step: Callable[[nn.Module, Batch], Any] | None = None,
        metrics: Mapping[str, AnyMetric] | None = None,
        train_metrics: Mapping[str, AnyMetric] | None = None,
        evaluate: Evaluate | None = None,
        callbacks: Sequence[AnyCallback] = (),
        sinks: Sequence[Sink] = (),
        device: torch.device | str = "auto",
        distributed: Distributed | None = None,
        say: Callable[[str], None] = to_stderr,
        progress: Shown | Callable[[str], None] | None = "auto",
    ) -> None:
        if started_together() > 1:
            print_errors_once()
        if (loss is None) == (step is None):
            raise BadRecipe("give either loss or step: step(model, batch) replaces the model's call and the loss")
        if step is not None and train_metrics:
            raise BadRecipe("train_metrics need the model's outputs, which a step of your own keeps to itself")
        require_kinds(model, loss, optimizer, recipe, step, evaluate)
        require_names("metrics", metrics or {})
        require_names("train_metrics", train_metrics or {})
        self.optimizer = one_optimizer(optimizer)
        require_plain_step(self.optimizer)
        self.model, self.loss, self.recipe = model, loss, recipe
        self.inputs, self.step, self.evaluate_own = inputs, step, evaluate
        self.metrics, self.train_metrics = own_metrics(metrics or {}), own_metrics(train_metrics or {}, in_steps=True)
        require_metrics(self.metrics, self.train_metrics)
        self.callbacks, self.sinks, self.say = list(callbacks), list(sinks), say
        self.progress = self._displayed(progress) if isinstance(progress, str) else progress
        self.device = device_from(device if distributed is None else local_device(device))
        self.processes = join(distributed, self.device)
        if not self.is_first:
            self.say, self.progress, self.sinks = _unheard, None, []
        self.beside = beside(loss, step)
        require_known(self.optimizer, model, self.beside)
        if self.processes is not None and self.processes.shards:
            self._spread(self.processes)
            shard(model, each(self.optimizer), self.processes)
        self._average: Average | None = None
        weights, channels_last = recipe.loss_weights, recipe.channels_last
        self.forward = Forward(model, loss, step, inputs, weights, recipe.precision, channels_last)

    @property
    def is_first(self) -> bool:
        """Return whether this process is the first, or the only one, of those that train together."""
        return self.processes is None or self.processes.is_first

    def _spread(self, processes: Processes) -> None:
        """Begin with the first process's weights, where a process has them whole."""
        parts = [self.model] if self.beside is None else [self.model, self.beside]
        tensors = [tensor for part in parts for tensor in [*part.parameters(), *part.buffers()]]
        processes.spread(tensor for tensor in tensors if not is_sharded(tensor))

    def _displayed(self, wanted: Shown) -> Callable[[str], None] | None:
        """Add the display to the sinks; return what shows progress between their records."""
        display = display_for(wanted, bool(self.callbacks))
        if display is None:
            return None
        self.sinks.append(display)
        self.say = display.say if self.say is to_stderr else self.say
        return display.progress if display.is_bar else None

    @naming_lost_processes()
    def fit(
        self,
        train: AnyData,
        valid: AnyData | None = None,
        epochs: int | None = None,
        resume: bool | Path | str = False,
    ) -> History:
        """Train to the end. `resume=True` continues from the last checkpoint in the recipe's folder, a path from that
        file, and "auto" continues where there is a checkpoint and otherwise begins.
        """
        if self.processes is None:
            require_alone()
        state, path = self._checkpoint(resume)
        if self.processes is None:
            prepared, _ = self._prepared(train, valid, epochs)
        else:
            prepared = self.processes.alike(lambda: self._prepared(train, valid, epochs))
        self._settle(prepared[0], state)
        return self._fitted(prepared, state, path)

    def _prepared(self, train: AnyData, valid: AnyData | None, epochs: int | None) -> tuple[Prepared, dict[str, Any]]:
        """Return what is trained, once it is known to work, and what several processes must have alike."""
        phases = phases_for(self.recipe, epochs)
        passes = sum(phase.epochs for phase in phases)
        source, held_out = self._source(train, "training", passes), self._source(valid, "validation", passes)
        assert source is not None
        if self.recipe.steps_per_epoch is not None:
            require_repeatable(source, self.model)
        if self.processes is not None:
            by_loss = isinstance(self.optimizer, Several) and bool(self.optimizer.names)
            shards = self.processes.shards
            require_shareable(source, self.model, self.recipe, shards, by_loss)
        require_order(self.model, self.recipe.shuffle, self.recipe.batch_size, source)
        if held_out is not None:
            require_order(self.model, False, self._evaluation_batch(), held_out, "validation")
        alike = facts_of(self.recipe, self.model, self.optimizer, passes, source, held_out)
        return (source, held_out, phases), alike

    def _settle(self, source: AnySource, state: checkpoints.State | None) -> None:
        """Choose by measurement what the recipe leaves open."""
        if self.recipe.precision == "auto":
            self.recipe = precision.settled(self, source, state)
            self.forward.dtype = LOW.get(self.recipe.precision)
        if self.recipe.activation_checkpointing == "auto":
            self.recipe = activations.settled(self, source)

    def _fitted(self, prepared: Prepared, state: checkpoints.State | None, path: Path | None) -> History:
        interrupts = Interrupts()
        with (
            own_stream(self.device),
            self.precisely(),
            recomputing(self.model, self.recipe.activation_checkpointing, self.device),
            interrupts.deferred(),
        ):
            self._move()
            if self.processes is not None:
                self._spread(self.processes)
            flatten(self.model)  # before anything holds the address of a weight
            run = Run(self._parts(*prepared, interrupts))
            self._average = run.average
            try:
                if self.processes is None:
                    run.prepare()
                else:
                    self.processes.alike(run.prepared)
                if state is not None and path is not None:
                    run.resume(state, path)
                    make_fast(self.optimizer, self.device, run.parts.recorder is not None, not is_sparse(self.model))
                run.foresee()
                run.parts.log.start()
                run.parts.callbacks.begin(run.view)
                loop.train(run)
                run.parts.callbacks.end(run.view)
                history = run.history()
            finally:
                close(run)
        interrupts.pass_on()
        return history

    @contextlib.contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Give the model the averaged weights of the last fit within the block, to evaluate or to save them."""
        if self._average is None:
            raise BadRecipe("no weights were averaged: fit with Recipe(ema=0.999) first")
        with self._average.in_place():
            yield self.model

    @naming_lost_processes()
    def evaluate(self, data: AnyData) -> dict[str, float]:
        """Return the metrics on any split, with the present weights."""
        source = self._source(data, "validation", 1)
        assert source is not None
        require_order(self.model, False, self._evaluation_batch(), source, "validation")
        self._move()
        with self.precisely():
            if self.step is not None and not self.metrics:
                with inferring(self.model):
                    return dict(self._by_step(source)(self.model))
            evaluation = self._evaluation()
            if not evaluation.metrics:
                raise BadRecipe("nothing to evaluate with: give metrics={…}, since evaluate=… uses data of its own")
            return evaluation(source, self.device)

    def predict(self, data: AnyData) -> Any:
        """Return the model's outputs for every row, in order, on the host: a tensor, or what the model returns of them.

        Targets in the data are ignored. Several processes share nothing here: each predicts the rows it is given.
        """
        source = self._source(data, "prediction", 1)
        assert source is not None
        require_order(self.model, False, self._evaluation_batch(), source, "prediction")
        self._move()
        with self.precisely():
            return predicted(self.forward, source, self._evaluation_batch(), self.device)

    def export(self, path: Path | str, data: AnyData) -> dict[str, float]:
        """Write the model, with its present weights, to a .pt2 file by torch.export, or to an .onnx file.

        Both take any number of rows.

        The file is loaded again and computes all rows of `data`; it is kept if its outputs and metrics equal the
        model's. Return the metrics.
        """
        if self.processes is not None and self.processes.shards:
            raise ExportFailed(
                "the weights are shared out among the processes; resume the last checkpoint in one process, and export "
                "there"
            )
        source = self._source(data, "export", 1)
        assert source is not None
        self._move()
        batch, metrics = self._evaluation_batch(), self.metrics
        return export(self.model, source, self.inputs, batch, self.device, Path(path), metrics)

    def try_learning_rates(self, data: AnyData, low: float = 1e-6, high: float = 1.0, steps: int = 100) -> RateRange:
        """Train copies of model and optimizer for some steps with a rising learning rate, until the loss diverges.

        The rates are those of the first group; others keep their ratio to it.
        """
        return rate_range.tried(self, data, low, high, steps)

    def try_precisions(self, data: AnyData) -> Precisions:
        """Time a training step in each precision, on copies; nothing changes. The recipe's gate, if any, must pass."""
        source = self._source(data, "training", 2)
        assert source is not None
        return precision.tried(self, source)

    # Making a run

    @contextlib.contextmanager
    def precisely(self) -> Iterator[None]:
        """Compute as the recipe says, within the block."""
        low = self.recipe.precision in LOW
        names = self.recipe.full_precision if low else ()
        with computing(self.recipe), precision.in_float32(self.model, names, self.device):
            yield

    def _source(self, data: AnyData | None, name: str, passes: int) -> AnySource | None:
        if data is None:
            return None
        source = source_of(data, name, self.recipe, passes, self.device, self.say, is_float32(self.model))
        require_in_place(source, name, self.device)
        return source

    def _checkpoint(self, resume: bool | Path | str) -> tuple[checkpoints.State | None, Path | None]:
        def found() -> tuple[checkpoints.State | None, Path | None]:
            return checkpoints.to_resume(self.recipe.checkpoints, resume)

        return found() if self.processes is None else self.processes.from_first(found)  # others may not see the folder

    def _move(self) -> None:
        if self.recipe.channels_last:
            self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        else:
            self.model.to(self.device)
        if self.beside is not None:
            self.beside.to(self.device)
        for metric in [*self.metrics.values(), *self.train_metrics.values()]:
            metric.to(self.device)

    def _recorder(self) -> Recorder | None:
        if self.recipe.graph == "off" or self.processes is not None:
            return None
        recorder, why = recorder_for(self.device), "there is no CUDA device"
        if recorder is not None:
            why = "the gradients are sparse" if is_sparse(self.model) else why_not_captured(self.optimizer)
        if not why:
            return recorder
        if self.recipe.graph == "on":
            raise CaptureFailed(f'graph="on", but the step cannot be captured: {why}; use graph="auto"')
        if recorder is not None:
            self.say(f"step: no CUDA graph, {why}")
        return None

    def _parts(
        self, train: AnySource, valid: AnySource | None, phases: tuple[Phase, ...], interrupts: Interrupts
    ) -> Parts:
        recipe, recorder, own = self.recipe, self._recorder(), self.evaluate_own
        if self.step is not None and valid is not None and not self.metrics and own is None:
            own, valid = self._by_step(valid), None
        seed_streams(recipe.seed + (0 if self.processes is None else self.processes.rank))
        if not self.model.training:
            self.model.train()  # otherwise modules kept in evaluation mode stay so
        base_rates = tuple(float(group["lr"]) for group in self.optimizer.param_groups)
        make_fast(self.optimizer, self.device, recorder is not None, not is_sparse(self.model))
        return Parts(
            model=self.model,
            optimizer=self.optimizer,
            recipe=recipe,
            forward=self.forward,
            train=train,
            valid=valid,
            geometry=lay_out(train.rows, recipe),
            phases=phases,
            device=self.device,
            recorder=recorder,
            scaler=torch.amp.GradScaler(self.device.type) if recipe.precision == "fp16" else None,
            evaluation=self._evaluation(),
            beside=self.beside,
            own_evaluation=own,
            train_metrics=self.train_metrics,
            callbacks=Callbacks(self.callbacks, self.is_first),
            log=Log(self.sinks, self.progress),
            interrupts=interrupts,
            say=self.say,
            base_rates=base_rates,
            processes=self.processes,
        )

    def _evaluation(self) -> Evaluation:
        metrics = self.metrics
        if not metrics and self.evaluate_own is None and self.loss is not None:
            metrics = {"valid_loss": Mean(self._loss_alone)}
            metrics["valid_loss"].to(self.device)
        return Evaluation(self.forward, metrics, self._evaluation_batch(), self.say, self.processes)

    def _evaluation_batch(self) -> int:
        lanes = next((layer.lanes for layer in carrying(self.model)), None)
        return self.recipe.evaluation_batch or lanes or 4 * self.recipe.batch_size

    def _by_step(self, valid: AnySource) -> EvaluationByStep:
        size = self.recipe.evaluation_batch or self.recipe.batch_size
        return EvaluationByStep(self.forward, valid, size, self.device, self.processes)

    def _loss_alone(self, outputs: Any, *targets: torch.Tensor) -> torch.Tensor:
        assert self.loss is not None
        return self.forward.named(self.loss(outputs, *targets))["loss"]


def _unheard(line: str) -> None: ...
