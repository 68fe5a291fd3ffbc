"""The public keys by which Flower's SuperLink knows tenants' nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "nodes",
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("node_key", sa.Text, nullable=False),
    )
