"""What all tests share, for those of plug-ins."""

from tests.conftest import own_signals as own_signals
