"""Every key that a tenant's node has had: the one in use, and those before it, which never come back."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Takes the keys over into a table that can keep several of one tenant."""
    op.create_table(
        "node_keys",
        sa.Column("node_key", sa.Text, primary_key=True),
        sa.Column("tenant", sa.LargeBinary, nullable=False, index=True),
        sa.Column("retired", sa.Boolean, nullable=False),
    )
    op.execute("INSERT INTO node_keys (node_key, tenant, retired) SELECT node_key, tenant, false FROM nodes")
    op.drop_table("nodes")
