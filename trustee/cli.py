"""`pharoah-trustee`: the command line of a trustee. Each verb is a function that is imported when it is called."""

from federation.base.console import JSON, CommandLine, add_later, group

app = CommandLine(
    name="pharoah-trustee",
    help="Run a trustee: make its keys, make the token key with other trustees, answer requests, and show its log.",
    start=(
        "start here",
        "  pharoah-trustee init      make this trustee's keys and its card",
        "  pharoah-trustee status    show its state, and what is due",
        "  pharoah-trustee -h        list all verbs",
    ),
    renamed={
        "enrol": "join",
        "deal": "ceremony deal",
        "combine": "ceremony combine",
        "renew-certificate": "keys renew-certificate",
        "renew-mask-key": "keys renew-mask-key",
        "hand-over": "handover give",
        "take-over": "handover take",
    },
    order="init ceremony join serve status log keys handover",
    shared={"--home": "Home; also PHAROAH_TRUSTEE_HOME.", "--json": JSON},
)
for verb in ("init", "join", "serve", "status", "log"):
    add_later(app, f"trustee.verbs.{verb}")

ceremony = group("ceremony", "Make the token key with the other trustees, once.")
add_later(ceremony, "trustee.verbs.deal")
add_later(ceremony, "trustee.verbs.combine")
app.add_typer(ceremony)

keys = group("keys", "Renew the certificate or the mask key of this trustee.")
add_later(keys, "trustee.verbs.renew_certificate")
add_later(keys, "trustee.handover_verbs.renew_mask_key")
app.add_typer(keys)

handover = group("handover", "Hand the token key over to the next committee of trustees.")
add_later(handover, "trustee.handover_verbs.give")
add_later(handover, "trustee.handover_verbs.take")
app.add_typer(handover)
