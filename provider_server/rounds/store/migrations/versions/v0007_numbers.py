"""Numbers of hints that go on above the seconds since 1970, also after 2038."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Gives numbers eight bytes; those of SQLite have them."""
    if op.get_bind().dialect.name == "postgresql":
        for table in ("hints", "outcomes"):
            op.alter_column(table, "number", type_=sa.BigInteger)
