"""For every Python the tests start: importing torch makes a million objects and no garbage, so do not look for any.

A sixth of the time of an import. Full collections still happen, later.
"""

import gc

gc.set_threshold(100_000, 20, 20)
