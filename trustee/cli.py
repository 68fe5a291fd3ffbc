"""`pharoah-trustee`: the command line of a trustee. Each verb is a function that is imported when it is called."""

from federation.base.console import CommandLine, add_later

app = CommandLine(
    name="pharoah-trustee",
    help="Run a trustee: make its keys, make the token key with other trustees, answer requests, and show its log.",
)
for place in (
    "verbs.init",
    "verbs.renew_certificate",
    "verbs.deal",
    "verbs.combine",
    "verbs.enrol",
    "verbs.log",
    "verbs.status",
    "verbs.serve",
    "handover_verbs.renew_mask_key",
    "handover_verbs.hand_over",
    "handover_verbs.take_over",
):
    add_later(app, f"trustee.{place}")
