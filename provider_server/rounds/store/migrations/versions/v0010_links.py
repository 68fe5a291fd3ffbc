"""What tenants say of tokens: which of one epoch are which of the next."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "links",
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("token_before", sa.LargeBinary, primary_key=True),
        sa.Column("token_now", sa.LargeBinary, nullable=False),
    )
