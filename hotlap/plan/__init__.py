"""From what the user asks to what is applied: order, conflicts, risk policy."""
