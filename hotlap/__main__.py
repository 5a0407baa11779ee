"""python -m hotlap"""

from hotlap.cli import main

main()
