"""Observes where a program's time goes, from inside its process and from outside."""
