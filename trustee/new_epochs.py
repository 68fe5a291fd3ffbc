"""What a trustee asks of the first round of a new epoch: mask keys that are new, and in its custody.

A mask key that served an earlier epoch opens, for whoever gets it now, all that was contributed then. One that is left
with nobody ends the series if its owner is lost. The first epoch of a federation begins with the keys of its ceremony.
"""

from collections.abc import Iterable, Sequence

from crypto.errors import NotInCustody, PlanRefused
from crypto.signing import reopened
from federation.protocol.custody import Deposit, admits_deposits
from federation.protocol.directory import Directory
from federation.protocol.plan import Plan


def check_new_epoch(
    plan: Plan, before: Iterable[Plan], directory: Directory, own: int, deposits: Sequence[bytes]
) -> None:
    """Returns unless `plan` begins a series of a later epoch than one of `before` under mask keys that are not ready.

    `deposits` are what was left with trustee `own`, and checked then. PlanRefused for mask keys of an earlier epoch,
    NotInCustody for keys of other trustees of which there is no deposit, where the `directory` admits deposits.
    """
    earlier = [one for one in before if one.epoch < plan.epoch]
    if plan.position or not earlier:
        return
    served = {masking.mask_key for one in earlier for masking in one.trustees}
    if old := [one.index for one in plan.trustees if one.mask_key in served]:
        raise PlanRefused(
            f"round {plan.round_id} begins epoch {plan.epoch} under mask keys of an earlier one, of trustees {old}",
            hint="they run `pharoah-trustee renew-mask-key`; then all hand over, and the provider reseats",
        )
    kept = {reopened(Deposit, signed).mask_key for signed in deposits}
    if not admits_deposits(directory.threshold, len(directory.trustees)):
        return
    if missing := [one.index for one in plan.trustees if one.index != own and one.mask_key not in kept]:
        raise NotInCustody(
            f"round {plan.round_id} begins epoch {plan.epoch}, and trustee {own} has no deposit of the mask keys of"
            f" trustees {missing}"
        )
