"""Programs for a device that is reached over ssh: each is sent as source to the interpreter there, and is one file of the
standard library alone. Python 3.10 runs them.
"""
