"""Hints to tenants, the state of the episodes that they tell of, what tests confirmed, and the nodes of leases."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Makes the four tables."""
    op.create_table(
        "placements",
        sa.Column("lease", sa.LargeBinary, primary_key=True),
        sa.Column("node_names", sa.Text, nullable=False),
    )
    op.create_table(
        "hints",
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("at_h", sa.Float, nullable=False, index=True),
        sa.Column("hint", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "episodes",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("state", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "outcomes",
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("outcome", sa.LargeBinary, nullable=False),
    )
