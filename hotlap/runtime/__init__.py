"""What is decided while the program trains: which optimisations stay on, by blocks of its own steps."""
