"""Passes for anonymous checks: which batches were issued to whom, and which passes were spent."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "issued_passes",
        sa.Column("week", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("batch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "spent_passes",
        sa.Column("week", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("nonce", sa.LargeBinary, primary_key=True),
    )
