"""What all tests share, for those of plug-ins."""

from tests.conftest import cast as cast, own_signals as own_signals
