"""`hotlap scan`: from paths to findings, and from findings to repaired files."""

from hotlap.scanning.crew import scan
from hotlap.scanning.file_scan import FindingFilter, scan_text
from hotlap.scanning.program import scan_program
from hotlap.scanning.repairs import FileRepair, repair, repair_text, write

__all__ = ["FileRepair", "FindingFilter", "repair", "repair_text", "scan", "scan_program", "scan_text", "write"]
