from contextlib import contextmanager
BUGS = {}
@contextmanager
def plant(name):
    yield
