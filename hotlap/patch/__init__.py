"""How hotlap enters a process and leaves no trace: boot, post-import hook, ledger, guard, seams."""
