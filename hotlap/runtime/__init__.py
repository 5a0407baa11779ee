"""What an optimisation works through in the user's process: its site, the roots of the model, rehearsals."""
