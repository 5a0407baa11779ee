"""The command `hotlap`, for a process that has already imported it."""

from hotlap.cli import main

main()
