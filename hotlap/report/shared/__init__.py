"""What all reports share: formatting of figures, tables, and the pieces of terminal, Markdown, HTML and SVG pages."""
