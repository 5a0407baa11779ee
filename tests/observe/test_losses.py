"""One loss per step is recorded: the value that the user called backward on."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.observe.losses import Losses
from hotlap.observe.tape import DIFFERENTIATE, DIFFERENTIATED


def tensor(value: float) -> torch.Tensor:
    return torch.tensor(value, requires_grad=True) + 0


@pytest.fixture(params=["device unknown", "on the host"])
def losses(request) -> Losses:
    losses = Losses(torch)
    losses.on_host = request.param == "on the host"
    return losses


def backward(losses: Losses, *roots: torch.Tensor) -> None:
    losses.add(losses.note(None, (roots[0] if len(roots) == 1 else roots,), {}))


def end_step(losses: Losses) -> None:
    losses.optimizer_ended()
    losses.close_step()


def values(losses: Losses) -> tuple[float, ...]:
    return losses.values(may_wait=False)


def test_a_plain_loop_has_one_loss_per_step(losses):
    for value in (3.0, 2.0, 1.0):
        backward(losses, tensor(value))
        end_step(losses)
    assert values(losses) == (3.0, 2.0, 1.0)
    assert losses.backwards == 3
    assert losses.seen


def test_accumulated_micro_batches_have_their_mean(losses):
    for value in (1.0, 2.0, 6.0):
        backward(losses, tensor(value))
    end_step(losses)
    assert values(losses) == (3.0,)


@pytest.mark.parametrize("divided", [lambda loss: loss / 4, lambda loss: 0.25 * loss])
def test_accumulated_micro_batches_that_the_program_divides_add_up(losses, divided):
    for value in (1.0, 2.0, 3.0, 6.0):
        backward(losses, divided(tensor(value)))
    end_step(losses)
    assert values(losses) == (3.0,)


def test_both_losses_of_a_gan_belong_to_its_step(losses):
    backward(losses, tensor(1.0))
    losses.optimizer_ended()
    backward(losses, tensor(0.5))
    losses.optimizer_ended()
    losses.close_step()
    assert values(losses) == (1.5,)


def test_a_backward_after_the_last_optimizer_step_belongs_to_the_next(losses):
    """Without a loader a step is known to have ended only when the optimizer steps again, after the next backward."""
    backward(losses, tensor(1.0))
    losses.optimizer_ended()
    backward(losses, tensor(2.0))
    losses.close_step()
    losses.optimizer_ended()
    losses.close_step()
    assert values(losses) == (1.0, 2.0)


def test_a_scaled_loss_is_recorded_as_it_was_before_scaling(losses):
    loss = tensor(0.25)
    scaled = loss * 65536
    losses.scaled(None, (loss,), {}, scaled)
    backward(losses, scaled)
    end_step(losses)
    loss, scaled = tensor(0.5), tensor(0.5) * 65536
    losses.scaled(None, (), {"outputs": loss}, scaled)
    backward(losses, scaled)
    end_step(losses)
    assert values(losses) == (0.25, 0.5)


def test_scaling_something_else_is_not_mistaken_for_the_loss(losses):
    losses.scaled(None, (tensor(9.0),), {}, tensor(90.0))
    backward(losses, tensor(2.0))
    end_step(losses)
    assert values(losses) == (2.0,)


def test_several_roots_of_one_backward_add_up(losses):
    backward(losses, tensor(1.0), tensor(2.5))
    end_step(losses)
    losses.add(losses.note(None, (), {"tensors": [tensor(1.0)]}))
    end_step(losses)
    losses.add(losses.note(None, (), {"outputs": tensor(0.5)}))
    end_step(losses)
    assert values(losses) == (3.5, 1.0, 0.5)


def test_only_the_first_evaluation_of_lbfgs_counts(losses):
    losses.stepping = True
    for value in (4.0, 3.0, 2.0):
        backward(losses, tensor(value))
    losses.stepping = False
    end_step(losses)
    assert values(losses) == (4.0,)
    assert losses.backwards == 3


def test_a_root_of_many_values_is_not_a_loss(losses):
    backward(losses, torch.ones(3, requires_grad=True) * 2)
    end_step(losses)
    assert values(losses) == ()
    assert not losses.seen


def test_a_single_value_of_any_shape_and_dtype_is_a_loss(losses):
    backward(losses, tensor(1.5).reshape(1, 1).to(torch.bfloat16))
    end_step(losses)
    assert values(losses) == (1.5,)


def test_a_loss_of_nan_is_recorded_as_nan(losses):
    backward(losses, tensor(float("nan")))
    end_step(losses)
    (value,) = values(losses)
    assert math.isnan(value)


def test_a_later_change_in_place_does_not_alter_a_recorded_loss(losses):
    loss = tensor(1.0)
    backward(losses, loss)
    with torch.no_grad():
        loss.zero_()
    end_step(losses)
    assert values(losses) == (1.0,)


def test_one_step_without_a_loss_discards_the_series(losses):
    """A series with gaps must not be compared step by step with another one."""
    backward(losses, tensor(1.0))
    end_step(losses)
    end_step(losses)
    assert values(losses) == ()


def test_after_the_window_backwards_are_counted_but_losses_are_not_recorded(losses):
    backward(losses, tensor(1.0))
    end_step(losses)
    losses.keeping = False
    backward(losses, tensor(2.0))
    end_step(losses)
    assert values(losses) == (1.0,)
    assert losses.backwards == 2


def test_iterators_and_tensor_subclasses_are_not_read(losses):
    """An iterator would be exhausted before torch reads it; a subclass may do anything when its value is read."""
    roots = iter([tensor(1.0)])
    losses.add(losses.note(None, (roots,), {}))
    assert next(roots).item() == 1.0
    losses.add(losses.note(None, (torch.nn.Parameter(torch.ones(())),), {}))
    end_step(losses)
    assert values(losses) == ()
    assert losses.backwards == 2


def test_torch_passes_the_loss_to_backward_as_the_first_argument():
    """`loss.backward()` reaches `torch.autograd.backward` with the loss as its first argument."""
    from hotlap.patch.guard import Guard
    from hotlap.patch.seams import Seams

    losses, tape = Losses(torch), []
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    try:
        seams.backward.write_to(tape.append, DIFFERENTIATE, DIFFERENTIATED, losses.note)
        weight = torch.nn.Parameter(torch.ones(2))
        (weight * 3).sum().backward()
        torch.autograd.backward([(weight * 2).sum()])
        torch.autograd.grad((weight * 1).sum(), [weight])
    finally:
        seams.close()
    assert [entry[0] for entry in tape] == [DIFFERENTIATE, DIFFERENTIATED] * 3
    for _, _, _, loss in tape[::2]:
        losses.add(loss)
    end_step(losses)
    assert losses.backwards == 3
    assert values(losses) == (4.0,)


# Losses on a device are not copied after warm-up. Addresses and versions behave alike on the host.


def loss_tensor(loss):
    from hotlap.observe.losses import LossTensor

    return LossTensor(loss, loss._version)


def warmed(*pairs) -> Losses:
    """Losses copied during warm-up, each changed afterwards by its function."""
    losses = Losses(torch)
    for loss, afterwards in pairs:
        losses._originals.append((loss.detach(), loss._version))
        afterwards(loss)
        losses.add(1.0)
    losses.stop_copying()
    return losses


def untouched(loss) -> None:
    pass


def test_losses_that_are_never_overwritten_are_not_copied():
    assert not warmed((torch.tensor(1.0), untouched), (torch.tensor(2.0), untouched)).copying


def test_a_loss_changed_in_place_after_backward_is_always_copied():
    assert warmed((torch.tensor(1.0), lambda loss: loss.mul_(2)), (torch.tensor(2.0), untouched)).copying


def test_a_loss_in_a_reused_buffer_is_always_copied():
    buffer = torch.tensor(1.0)
    assert warmed((buffer, untouched), (buffer, untouched)).copying


def test_a_loss_that_is_a_view_of_a_large_tensor_is_copied():
    assert warmed((torch.zeros(10_000)[3], untouched)).copying


def test_an_overwritten_loss_turns_copying_on_again():
    losses = warmed((torch.tensor(1.0), untouched))
    late = torch.tensor(5.0)
    entry = loss_tensor(late)
    late.zero_()
    losses.add(entry)
    assert losses.copying
