"""Decide when CUDA graphs are captured, when they are replayed and when they are dropped."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from hotlap.catalog.cuda_graphs.functions import Functions
from hotlap.catalog.cuda_graphs.graphed_module import GraphedRoot
from hotlap.catalog.cuda_graphs.habits import Habits
from hotlap.catalog.cuda_graphs.inputs import kinds_of
from hotlap.catalog.cuda_graphs.losses import Losses
from hotlap.catalog.cuda_graphs.models import Models
from hotlap.catalog.cuda_graphs.recorder import CudaRecorder, Recorder
from hotlap.catalog.cuda_graphs.rules import Differs, has_own_hooks, why_not_root
from hotlap.catalog.cuda_graphs.step_replay import StepReplay
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import MISSING, call_with
from hotlap.runtime.site import Site

OBSERVED = 1  # ordinary steps with the root known, before anything is captured
STALE = 2  # steps without a call after which a root counts as no longer trained
MISSES = 16  # calls in a row that do not match the capture before it is captured again …
RECORDINGS, PER_STEPS = 4, 1000  # … at most this many times in all, and once more in so many steps


class ByHand:
    """Stands for the optimizer of a program that updates its weights by hand after each backward."""


BY_HAND = ByHand()


def apply(site: Site) -> None:
    Graphs(site, CudaRecorder(site.torch)).begin()


class Graphs:
    def __init__(self, site: Site, recorder: Recorder) -> None:
        self.site, self.torch, self.recorder = site, site.torch, recorder
        self.habits = Habits()
        self.stepping, self.losses = StepReplay(self), Losses(self)
        self.functions = Functions(self, self.losses)
        self.models: Models | None = None  # set for several models, or several calls of one before a backward
        self._root: Any = lambda: None
        self._steps = self._called_at = 0  # of any optimizer; the last step at which the root was called
        self._graphed: GraphedRoot | None = None
        self._recordings = self._misses = 0
        self._applied = self._is_forked = False
        self._last: Any = None

    def begin(self) -> None:
        site, seams = self.site, self.site.seams
        site.when_root(self._known)
        site.before(seams.backward, self._backward)
        site.after(seams.backward, self._backward_ended)
        site.before(seams.scaled_step, self._scaled)
        site.after(seams.stepping, self._stepped)
        site.stand_in(seams.calling, self._called)
        self.stepping.begin()
        self.losses.begin()
        site.ledger.later(self.drop)
        seams.when_silent.append(self._forked)

    @property
    def active(self) -> bool:
        return self._graphed is not None or (self.models is not None and self.models.recorded > 0)

    @property
    def graphed(self) -> GraphedRoot | None:
        return self._graphed

    def parameters_of_root(self, given: Any) -> list[Any] | None:
        """Return the parameters in a list if `given` is an unread `parameters()` generator of the root, else None."""
        root, graphed = self._root(), self._graphed
        return None if root is None or graphed is None else graphed.parameters(given, root)

    # What the program's steps show

    def _known(self, module: Any) -> None:
        """Follow one root at a time; another may replace it once the first is gone or no longer trained."""
        if self.models is not None:
            self.models.add(module)
            return
        before = self._root()
        if before is not None and self._steps - self._called_at < STALE:
            self._become_several().add(module)
            return
        self.drop()
        self.habits, self._recordings = Habits(), 0
        self._root = weakref.ref(module, lambda _: self.drop())
        self._called_at = self._steps
        self.habits.root_known()

    def _become_several(self) -> Models:
        """Switch from one model with one call at a time to a capture for each call of each model."""
        self.drop()
        self.models = models = Models(self)
        if (root := self._root()) is not None:
            models.add(root)
        return models

    def _backward(self, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.functions.backward_begins()
        plain = self.habits.backward(first, args, kwargs)
        if self._graphed is not None:
            self._graphed.plain_backward(plain)

    def _backward_ended(self, *_: Any) -> None:
        if self._graphed is not None:
            self._graphed.plain_backward(False)
        if self.site.seams.without_optimizer:
            self._stepped(BY_HAND)

    def _scaled(self, scaler: Any, *_: Any) -> None:
        self.habits.scaler = self.habits.scaler or scaler.is_enabled()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self._steps += 1
        self.habits.stepped(optimizer)
        if self.habits.why_not is not None and not self._has_recorded:
            self._refuse(self.habits.why_not)
        elif self.habits.is_several and not self._has_recorded and self.models is None and self._root() is not None:
            self._become_several()

    @property
    def _has_recorded(self) -> bool:
        return bool(self._recordings) or (self.models is not None and self.models.recorded > 0)

    def _refuse(self, why: str) -> None:
        if self._applied:
            self.site.withdraw(why)
        else:
            self.site.refused(why)
            self.site.close()

    # Forward and backward

    def _called(self, original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_ours = module is self._root() if self.models is None else self.models.of(module) is not None
        if not is_ours or not module.training or not self.torch.is_grad_enabled():
            return original(*args, **kwargs)
        self.habits.called()
        self._called_at = self._steps
        forward = module.forward
        if self.active and not has_own_hooks(self.torch, module):
            found = self._replayed(module, forward, args, kwargs)
            return original(*args, **kwargs) if found is MISSING else found

        def instead(*call_args: Any, **call_kwargs: Any) -> Any:
            found = self._replayed(module, forward, call_args, call_kwargs)
            return forward(*call_args, **call_kwargs) if found is MISSING else found

        return call_with(instead, module, lambda: original(*args, **kwargs))

    def _replayed(self, module: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Replay the call, or return MISSING. An error in here is hotlap's, though it is inside the user's call."""
        try:
            if self.models is not None:
                return self._of_several(module, forward, args, kwargs)
            if self._graphed is None and not self._record(module, forward, args, kwargs):
                return MISSING
            assert self._graphed is not None
            found = self._graphed(module, forward, args, kwargs)
        except Differs as difference:
            self.site.differs(str(difference))
            return MISSING
        except EntryDeclined as refusal:
            self._refuse(str(refusal))
            return MISSING
        except Exception as error:
            if self.site.seams.guard.strict or comes_from_outside(error):
                raise
            self.site.withdraw(f"it failed ({type(error).__name__}: {error}) and was undone")
            return MISSING
        self._misses = self._misses + 1 if found is MISSING else 0
        if found is not MISSING:
            self.functions.root_replayed()
        elif (self._misses >= MISSES or self._graphed.is_over) and self._may_record:
            self._let_go()
        return found

    def _of_several(self, module: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        model = None if self.models is None or self.site.closed else self.models.of(module)
        found = MISSING if model is None else model(module, forward, args, kwargs)
        if found is MISSING and self.models is not None and (why := self.models.why_not) is not None:
            raise EntryDeclined(why)
        return found

    def _record(self, module: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Capture after an ordinary step, for inputs of a kind seen twice in a row; return whether that happened."""
        if self.habits.steps < OBSERVED or not self._may_record or self.site.closed:
            return False
        leaves, shape = self.torch.utils._pytree.tree_flatten((args, kwargs))
        kinds = kinds_of(self.torch, leaves, self.recorder.device_type)
        repeated, self._last = kinds is not None and (shape, kinds) == self._last, (shape, kinds)
        if not repeated:
            self.site.no_effect("no two training calls in a row had inputs that can be captured")
            return False
        why = why_not_root(self.torch, module, self.recorder.device_type)
        why = why or self._why_not_now()
        if why is not None:
            raise EntryDeclined(why)
        self._recordings += 1
        self._misses = 0
        self._graphed = GraphedRoot(self.torch, self.recorder, module, forward, args, kwargs)
        self.tell()
        return True

    @property
    def _may_record(self) -> bool:
        return self._recordings < RECORDINGS + self._steps // PER_STEPS

    def _why_not_now(self) -> str | None:
        return "anomaly mode is on" if self.torch.is_anomaly_enabled() else None

    def tell(self) -> None:
        if self.models is not None:
            if self.active:
                self._applied = True
                self.site.applied(f"{self.models}; {self.stepping}")
            return
        root = self._root()
        if self.active and root is not None:
            self._applied = True
            self.site.applied(
                f"forward and backward of {type(root).__name__}{self.losses}{self.functions}; {self.stepping}"
            )

    def drop(self) -> None:
        """Drop all captured graphs. Gradients that lie in their memory keep it alive."""
        if not self._is_forked:
            self._let_go()
            self.functions.drop()

    def _forked(self) -> None:
        """A forked child can free nothing that lies on the device, so its collector must not find what is there now."""
        self._is_forked = True
        if self._has_recorded:
            gc.freeze()

    def _let_go(self) -> None:
        """Drop everything that depends on the state of the root."""
        graphed, self._graphed = self._graphed, None
        self._last = None
        if graphed is not None:
            graphed.forget()
        if self.models is not None:
            self.models.drop()
        self.losses.drop()
        self.stepping.drop()
