"""Fixtures that several files share; what they hand out is made in `tests/factories.py`."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.factories import Cast


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Cast]:
    """Whoever takes part in one test, closed when it ends."""
    with closing(Cast(tmp_path)) as parties:
        yield parties
