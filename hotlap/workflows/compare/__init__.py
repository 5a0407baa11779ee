"""`hotlap compare`: did it get slower?"""
