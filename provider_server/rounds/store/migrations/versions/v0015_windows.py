"""Rounds without memory: nothing of a round is kept for later ones, and a release stands alone.

A release, plan or round of before is in a form that nothing reads any more: a store that holds rounds is refused.
"""

import sqlalchemy as sa
from alembic import op

from provider_server.rounds.store.migrations.upgrade import OlderRounds

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Drops the masked counts of series; OlderRounds where there are rounds."""
    if op.get_bind().execute(sa.text("SELECT 1 FROM rounds")).first():
        raise OlderRounds("this store holds rounds of correlated noise, which this version does not read")
    op.drop_table("masked_counts")
