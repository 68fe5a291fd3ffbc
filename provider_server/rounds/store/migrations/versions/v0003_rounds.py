"""Rounds that survive a killed provider, the directory with its past, and what tenants say that they own.

Entries of the directory are final, and so is the request of a round once a trustee has answered it: the database itself
refuses to change them, as it does for releases and bundles.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_SQLITE = [
    "CREATE TRIGGER directory_is_final BEFORE UPDATE ON directory"
    " BEGIN SELECT RAISE(ABORT, 'entries of the directory are final'); END",
    "CREATE TRIGGER directory_stays BEFORE DELETE ON directory"
    " BEGIN SELECT RAISE(ABORT, 'entries of the directory are final'); END",
    "CREATE TRIGGER directory_is_not_replaced BEFORE INSERT ON directory"
    " WHEN EXISTS (SELECT 1 FROM directory WHERE number = NEW.number)"
    " BEGIN SELECT RAISE(ABORT, 'entries of the directory are final'); END",
    "CREATE TRIGGER requests_are_final BEFORE UPDATE ON rounds"
    " WHEN OLD.request IS NOT NULL AND NEW.request IS NOT OLD.request"
    " AND (NEW.request IS NULL OR EXISTS (SELECT 1 FROM answers WHERE round_id = OLD.round_id))"
    " BEGIN SELECT RAISE(ABORT, 'requests are final'); END",
    "CREATE TRIGGER requests_stay BEFORE DELETE ON rounds WHEN OLD.request IS NOT NULL"
    " BEGIN SELECT RAISE(ABORT, 'requests are final'); END",
    "CREATE TRIGGER requests_are_not_replaced BEFORE INSERT ON rounds"
    " WHEN EXISTS (SELECT 1 FROM rounds WHERE number = NEW.number OR round_id = NEW.round_id)"
    " BEGIN SELECT RAISE(ABORT, 'requests are final'); END",
]
# The function comes with the step before.
_POSTGRESQL = [
    "CREATE FUNCTION pharoah_request_final() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " IF NEW.request IS NULL OR EXISTS (SELECT 1 FROM answers WHERE round_id = OLD.round_id) THEN"
    " RAISE EXCEPTION 'requests are final' USING ERRCODE = 'integrity_constraint_violation'; END IF;"
    " RETURN NEW; END $$",
    "CREATE TRIGGER directory_is_final BEFORE UPDATE OR DELETE OR TRUNCATE ON directory"
    " FOR EACH STATEMENT EXECUTE FUNCTION pharoah_final()",
    "CREATE TRIGGER requests_are_final BEFORE UPDATE ON rounds FOR EACH ROW"
    " WHEN (OLD.request IS NOT NULL AND NEW.request IS DISTINCT FROM OLD.request)"
    " EXECUTE FUNCTION pharoah_request_final()",
    "CREATE TRIGGER requests_stay BEFORE DELETE ON rounds FOR EACH ROW"
    " WHEN (OLD.request IS NOT NULL) EXECUTE FUNCTION pharoah_final()",
    "CREATE TRIGGER requests_stay_all BEFORE TRUNCATE ON rounds FOR EACH STATEMENT EXECUTE FUNCTION pharoah_final()",
]


def upgrade() -> None:
    """Makes the seven tables, and the triggers."""
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
    for statement in _POSTGRESQL if op.get_bind().dialect.name == "postgresql" else _SQLITE:
        op.execute(statement)
