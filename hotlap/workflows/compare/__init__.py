"""hotlap compare: tells whether a command or a revision became slower."""
