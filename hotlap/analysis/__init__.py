"""Reading Python source without importing it: what runs often, what it is, and edits with a safety class."""
