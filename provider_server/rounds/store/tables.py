"""The tables of the provider's store; `schema` beside it makes them. See docs/architecture.md."""

import sqlalchemy as sa

metadata = sa.MetaData()

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("lease", sa.LargeBinary, primary_key=True),
    sa.Column("tenant", sa.LargeBinary, nullable=False),
    sa.Column("nodes", sa.Integer, nullable=False),
    sa.Column("start_h", sa.Float, nullable=False, index=True),
    sa.Column("end_h", sa.Float, nullable=False, index=True),
    sa.Column("contexts", sa.Text, nullable=False),
    sa.Column("ladder", sa.Text, nullable=True),
)
releases = sa.Table(
    "releases",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("round_id", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("release", sa.LargeBinary, nullable=False),
)
bundles = sa.Table(
    "bundles",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("bundle", sa.LargeBinary, nullable=False),
)
directory = sa.Table(
    "directory",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("entry", sa.LargeBinary, nullable=False),
)
ownerships = sa.Table(
    "ownerships",
    metadata,
    sa.Column("tenant", sa.LargeBinary, primary_key=True),
    sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ownership", sa.LargeBinary, nullable=False),
)
rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("round_id", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("signed_plan", sa.LargeBinary, nullable=False),
    sa.Column("request", sa.LargeBinary, nullable=True),
    sa.Column("ownerships", sa.LargeBinary, nullable=True),
)
contributions = sa.Table(
    "contributions",
    metadata,
    sa.Column("round_id", sa.LargeBinary, primary_key=True),
    sa.Column("tenant", sa.LargeBinary, primary_key=True),
    sa.Column("message", sa.LargeBinary, nullable=False),
)
answers = sa.Table(
    "answers",
    metadata,
    sa.Column("round_id", sa.LargeBinary, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("trustee", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("message", sa.LargeBinary, nullable=False),
)
node_keys = sa.Table(
    "node_keys",
    metadata,
    sa.Column("node_key", sa.Text, primary_key=True),
    sa.Column("tenant", sa.LargeBinary, nullable=False, index=True),
    sa.Column("retired", sa.Boolean, nullable=False),
)
notes = sa.Table(
    "notes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("note", sa.Text, nullable=False),
)
placements = sa.Table(
    "placements",
    metadata,
    sa.Column("lease", sa.LargeBinary, primary_key=True),
    sa.Column("node_names", sa.Text, nullable=False),
)
hints = sa.Table(
    "hints",
    metadata,
    sa.Column("tenant", sa.LargeBinary, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_h", sa.Float, nullable=False, index=True),
    sa.Column("hint", sa.LargeBinary, nullable=False),
)
episodes = sa.Table(
    "episodes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("state", sa.LargeBinary, nullable=False),
)
outcomes = sa.Table(
    "outcomes",
    metadata,
    sa.Column("tenant", sa.LargeBinary, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("outcome", sa.LargeBinary, nullable=False),
)
revoked = sa.Table(
    "revoked",
    metadata,
    sa.Column("tenant", sa.LargeBinary, primary_key=True),
    sa.Column("until_s", sa.BigInteger, nullable=False),
)
links = sa.Table(
    "links",
    metadata,
    sa.Column("tenant", sa.LargeBinary, primary_key=True),
    sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("token_before", sa.LargeBinary, primary_key=True),
    sa.Column("token_now", sa.LargeBinary, nullable=False),
)
own_failures = sa.Table(
    "own_failures",
    metadata,
    sa.Column("lease", sa.LargeBinary, primary_key=True),
    sa.Column("at_h", sa.Float, primary_key=True),
)
own_hours = sa.Table(
    "own_hours",
    metadata,
    sa.Column("start_hour", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("end_hour", sa.Integer, nullable=False),
)
operators = sa.Table(
    "operators",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("findings", sa.LargeBinary, nullable=False),
)
endings = sa.Table(
    "endings",
    metadata,
    sa.Column("lease", sa.LargeBinary, primary_key=True),
    sa.Column("requeued", sa.Boolean, nullable=False),
)
issued_passes = sa.Table(
    "issued_passes",
    metadata,
    sa.Column("week", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tenant", sa.LargeBinary, primary_key=True),
    sa.Column("batch", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("request", sa.LargeBinary, nullable=False),
)
spent_passes = sa.Table(
    "spent_passes",
    metadata,
    sa.Column("week", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("nonce", sa.LargeBinary, primary_key=True),
)
