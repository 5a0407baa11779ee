"""python -m hotlap"""

import sys
from pathlib import Path

# Python puts the folder it is started in ahead of everything: a click.py of the program's is not ours.
if sys.path[:1] == [str(Path.cwd())] and not (Path.cwd() / "hotlap" / "__main__.py").exists():
    del sys.path[0]

from hotlap.cli import main

main()
