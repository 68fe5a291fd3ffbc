"""The tenant's page: its own leases, checks, attempts, hints, budget, and every byte that left, in its own browser.

    home ─ house ─▶ House ─▶ templates (HTML)
         └ outbox ─▶ messages, part by part and word by word

Everything is worked out on this machine. Looking at it sends nothing and changes nothing; there is no script on it.
"""
