"""Run directories as the tests of the report make them."""

from tests.report.conftest import make_record, make_run

__all__ = ["make_record", "make_run"]
