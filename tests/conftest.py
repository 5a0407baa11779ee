import os
import sys
from pathlib import Path

# Two test processes share two cores: more threads each, in them or in what they start, would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).parent))
