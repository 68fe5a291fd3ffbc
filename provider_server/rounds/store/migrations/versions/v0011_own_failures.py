"""What the provider saw itself: failures on leases, the hours in which it looked, and counts of them under noise."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "own_failures",
        sa.Column("lease", sa.LargeBinary, primary_key=True),
        sa.Column("at_h", sa.Float, primary_key=True),
    )
    op.create_table(
        "own_hours",
        sa.Column("start_hour", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("end_hour", sa.Integer, nullable=False),
    )
    op.create_table(
        "own_counts",
        sa.Column("round_id", sa.LargeBinary, primary_key=True),
        sa.Column("counts", sa.LargeBinary, nullable=False),
    )
