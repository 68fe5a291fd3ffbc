"""Alembic runs this file to take the steps, on the connection and in the transaction that `upgrade` gives it."""

from alembic import context


def run() -> None:
    """Takes the steps that were asked for."""
    context.configure(connection=context.config.attributes["connection"])
    with context.begin_transaction():
        context.run_migrations()


if __name__ == "env_py":  # Alembic's name for it; whoever merely imports it runs nothing
    run()
