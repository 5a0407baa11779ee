"""How we enter a process and leave no trace: boot, post-import hook, ledger, guard, seams."""
