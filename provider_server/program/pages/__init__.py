"""The provider's page: what happened, what was learnt, and who is late, in a browser.

    store and home ─ snapshot ─▶ Snapshot ─ views ─▶ dataclasses ─┬─▶ templates (HTML)
                                                                  └─▶ /api/… (JSON, the same fields)

It reads releases, bundles, plans and the provider's own telemetry: never a contribution, masked or not, and nothing of
what a tenant's jobs did beyond what passed the gate. It holds no key that signs.
"""
