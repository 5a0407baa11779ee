"""What all reports are drawn with: figures, tables, and the pieces of a terminal, Markdown, HTML and SVG page."""
