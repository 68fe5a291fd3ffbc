"""The label of a node in a cluster that says in which context it is: the provider's token of the context.

The provider writes it (`pharoah-provider kubernetes`), tenants name it in the affinity of pods (`pharoah-tenant
admission`). It is the token that a lease on the node comes with; a value of 32 letters fits a label, which has 63.
"""

CONTEXT_LABEL = "pharoah.dev/context"
