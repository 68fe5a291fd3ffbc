"""`pharoah-tenant confirm`: a group whose verbs are imported when they are called."""

from federation.base.console import AskingVerb, GroupWithDefault, Verb, add_later, group


class ConfirmGroup(GroupWithDefault):
    """A first word that is no verb of this group is an argument of `test`."""

    default = "test"


class PairsCommand(Verb):
    """What follows the nodes is the command line of another program."""

    allow_interspersed_args = False


confirm = group(
    "confirm",
    "Test suspected hardware with a micro-benchmark. Stop the job first: a shared device measures slow.",
    cls=ConfirmGroup,
)
add_later(confirm, "pharoah_confirm.machine_verbs.confirm", name="test", cls=AskingVerb)
add_later(confirm, "pharoah_confirm.machine_verbs.learn")
add_later(confirm, "pharoah_confirm.pair_verbs.answer")
add_later(confirm, "pharoah_confirm.machine_verbs.determinism", cls=AskingVerb)
add_later(confirm, "pharoah_confirm.pair_verbs.pairs", cls=PairsCommand)
