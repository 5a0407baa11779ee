"""Hourly readings of seven sensors, made up: daily and weekly waves with noise, as ETTh1.csv has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SENSORS = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
HOURS = 14400 + 3000  # the programs take fixed months of it


def make(folder: Path) -> None:
    rng = np.random.default_rng(0)
    hours = np.arange(HOURS)[:, None]
    phases = rng.random((2, len(SENSORS))) * 2 * np.pi
    values = 8 + 5 * np.sin(hours * 2 * np.pi / 24 + phases[0]) + 2 * np.sin(hours * 2 * np.pi / 168 + phases[1])
    values += rng.normal(scale=0.5, size=values.shape)
    dates = np.datetime64("2016-07-01T00:00:00") + np.arange(HOURS).astype("timedelta64[h]")
    rows = (
        f"{str(date).replace('T', ' ')}," + ",".join(f"{value:.4f}" for value in row)
        for date, row in zip(dates, values, strict=True)
    )
    (folder / "ETTh1.csv").write_text("\n".join([",".join(("date", *SENSORS)), *rows]) + "\n")
