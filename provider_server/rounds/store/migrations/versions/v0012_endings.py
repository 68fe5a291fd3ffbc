"""Ends of leases that were told, so that a planned end is told from one that came."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "endings",
        sa.Column("lease", sa.LargeBinary, primary_key=True),
        sa.Column("requeued", sa.Boolean, nullable=False),
    )
