"""Findings for operators, beside the bundles; own failures under noise are no more."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Makes the table, and drops that of counts under noise."""
    op.create_table(
        "operators",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("findings", sa.LargeBinary, nullable=False),
    )
    op.drop_table("own_counts")
