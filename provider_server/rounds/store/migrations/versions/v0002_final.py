"""Releases and bundles are final: the database itself refuses to change, replace or remove one.

Whoever may drop a trigger or a table can still do so. The triggers hold against mistakes and against the rights that
a provider's processes need.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

_KEYS = {"releases": ("number", "round_id"), "bundles": ("number",)}

# An INSERT OR REPLACE of SQLite runs no trigger on the row that it removes; the third trigger stands in its way.
_SQLITE = """
CREATE TRIGGER {table}_are_final BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, '{table} are final'); END;
CREATE TRIGGER {table}_stay BEFORE DELETE ON {table} BEGIN SELECT RAISE(ABORT, '{table} are final'); END;
CREATE TRIGGER {table}_are_not_replaced BEFORE INSERT ON {table}
    WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) BEGIN SELECT RAISE(ABORT, '{table} are final'); END;
"""
_POSTGRESQL_FUNCTION = """
CREATE FUNCTION pharoah_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% are final', TG_TABLE_NAME USING ERRCODE = 'integrity_constraint_violation';
END $$
"""
_POSTGRESQL = """
CREATE TRIGGER {table}_are_final BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
    FOR EACH STATEMENT EXECUTE FUNCTION pharoah_final()
"""


def upgrade() -> None:
    """Makes the triggers."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_POSTGRESQL_FUNCTION)
        for table in _KEYS:
            op.execute(_POSTGRESQL.format(table=table))
        return
    for table, keys in _KEYS.items():
        same = " OR ".join(f"{key} = NEW.{key}" for key in keys)
        for statement in _SQLITE.format(table=table, same=same).strip().split("\nCREATE "):
            op.execute("CREATE " + statement.removeprefix("CREATE "))
