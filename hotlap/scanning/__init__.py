"""`hotlap scan`: from paths to findings, and from findings to repaired files."""

from hotlap.scanning.crew import scan
from hotlap.scanning.looking import Wanted, scan_text
from hotlap.scanning.program import scan_program
from hotlap.scanning.repairing import Repaired, repair, repair_text, write

__all__ = ["Repaired", "Wanted", "repair", "repair_text", "scan", "scan_program", "scan_text", "write"]
