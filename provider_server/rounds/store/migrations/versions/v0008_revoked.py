"""Sessions of tenants that were called back."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Makes the table."""
    op.create_table(
        "revoked",
        sa.Column("tenant", sa.LargeBinary, primary_key=True),
        sa.Column("until_s", sa.BigInteger, nullable=False),
    )
