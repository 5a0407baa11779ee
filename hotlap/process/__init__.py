"""Commands as processes: how they are started, waited for, limited, and ended with their whole process tree."""
