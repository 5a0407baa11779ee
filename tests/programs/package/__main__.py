import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
print(__name__, __package__, sys.argv[1:])
import plain_loop  # noqa: E402, F401 trains when imported
