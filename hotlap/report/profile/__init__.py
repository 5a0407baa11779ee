"""The report of a profile: one page, rendered for a terminal, as Markdown or as HTML."""
