"""Rounds that wait: each keeps the words of owners that its rows rest on, until trustees are shown them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Makes the column."""
    op.add_column("rounds", sa.Column("ownerships", sa.LargeBinary, nullable=True))
