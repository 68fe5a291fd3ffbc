"""The invitation: the provider's directory and addresses, sent to tenants and trustees that join.

provider → all      Signed(Invitation)     as a file

Guarantees: the provider named in the first entry signed it, and its entries form one chain.

Not promised: that this is the right provider, or that all members get the same directory. For this, people compare the
fingerprint of the head (`federation.protocol.enrolment.fingerprint`), and a trustee checks its own record in it.
"""

from crypto.codec import Many, Message, Text
from crypto.ids import VerifyKey
from federation.protocol.directory import Chain
from federation.protocol.enrolment import host_of, self_signed


class Invitation(Message, frozen=True, tag="pharoah/invitation/1"):
    """What a tenant or a trustee needs to join; travels signed by the provider that the first entry names.

    `entries` are the directory's, oldest first; `superlink` and `online` are host:port, where the provider's
    certificate is one under its root (`crypto.roots`).
    """

    provider: VerifyKey
    entries: Many[bytes]
    superlink: Text
    online: Text

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("an invitation brings the directory from its first entry on")
        host_of(self.superlink)
        host_of(self.online)

    def __str__(self) -> str:
        return f"the invitation of the provider at {self.online}"


def accept(signed: bytes) -> tuple[Invitation, Chain]:
    """The invitation in `signed`, and the directory that it brings. Compare the head with others before pinning it.

    Raises DecodeError, BadSignature unless the provider of the directory signed it, and what `Chain` raises for entries
    that do not lead on from one another.
    """
    invitation = self_signed(Invitation, signed, lambda provider: provider)
    first, *later = invitation.entries
    return invitation, Chain.begin(first, invitation.provider).extended(later)
