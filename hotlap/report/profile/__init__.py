"""The report of a profile: one page, drawn for a terminal, Markdown and HTML."""
