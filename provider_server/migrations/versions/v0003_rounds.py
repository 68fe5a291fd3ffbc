"""Rounds that survive a killed provider, the directory with its past, and what tenants say that they own."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Makes the seven tables."""
    op.create_table(
        "directory",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("entry", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "ownerships",
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ownership", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "rounds",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("round_id", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("state", sa.Text, nullable=False, index=True),
        sa.Column("signed_plan", sa.LargeBinary, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=True),
    )
    op.create_table(
        "contributions",
        sa.Column("round_id", sa.LargeBinary, primary_key=True),
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("message", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "answers",
        sa.Column("round_id", sa.LargeBinary, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("trustee", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("message", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "masked_counts",
        sa.Column("round_id", sa.LargeBinary, primary_key=True),
        sa.Column("group", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("left_out", sa.Boolean, nullable=False),
        sa.Column("words", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "notes",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("note", sa.Text, nullable=False),
    )
