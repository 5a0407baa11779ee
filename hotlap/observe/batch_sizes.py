"""Makes the program's training loader, and any other with the same batch size, with another one."""

from __future__ import annotations

import inspect
from typing import Any

from hotlap.patch.seams import Seams


def resize_batches(torch: Any, seams: Seams, now: int, wanted: int) -> None:
    """Give `wanted` to each DataLoader that asks for `now`, itself or by a plain batch sampler.

    Frameworks make loaders from the program's: those already have the new size, and are left as they are.
    """
    data = torch.utils.data
    names = list(inspect.signature(data.DataLoader.__init__).parameters)[1:]

    def instead(original: Any, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) > len(names):
            return original(*args, **kwargs)  # torch reports the error
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        batches: Any = given.get("batch_sampler")
        if batches is None and given.get("batch_size", 1) == now:
            given["batch_size"] = wanted
        elif type(batches) is data.BatchSampler and batches.batch_size == now:
            given["batch_sampler"] = data.BatchSampler(batches.sampler, wanted, batches.drop_last)
        return original(**given)

    seams.loader_made.stand_in(instead)
