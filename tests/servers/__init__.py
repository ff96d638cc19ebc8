"""Real servers for the tests, each a child process on a free port: started lazily, stopped, killed and frozen at will.

`tests/conftest.py` offers one of each kind to all tests. A test that harms its server starts one of its own.
"""
