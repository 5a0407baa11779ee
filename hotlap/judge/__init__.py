"""Judges a trial: speed with its uncertainty, quality gates, and the verdict."""
