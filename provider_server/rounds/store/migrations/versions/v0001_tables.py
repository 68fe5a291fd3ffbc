"""The three tables. A store from before there were migrations is at this step."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes leases, releases and bundles."""
    op.create_table(
        "leases",
        sa.Column("lease", sa.LargeBinary, primary_key=True),
        sa.Column("tenant", sa.LargeBinary, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("start_h", sa.Float, nullable=False, index=True),
        sa.Column("end_h", sa.Float, nullable=False, index=True),
        sa.Column("contexts", sa.Text, nullable=False),
        sa.Column("ladder", sa.Text, nullable=True),
    )
    op.create_table(
        "releases",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("round_id", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("release", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "bundles",
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("bundle", sa.LargeBinary, nullable=False),
    )
