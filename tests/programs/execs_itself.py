"""Replaces itself with another Python process before it trains, as launchers do."""

import os
import sys
from pathlib import Path

if "--again" not in sys.argv:
    os.execv(sys.executable, [sys.executable, __file__, "--again"])
import torch  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))
import plain_loop  # noqa: E402, F401
