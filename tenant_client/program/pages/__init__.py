"""The tenant's page: leases, checks, attempts, hints, budget and all data that left, in a browser.

    home ─ house ─▶ House ─▶ templates (HTML)
         └ outbox ─▶ messages, part by part and word by word

- Everything is computed on this machine. Viewing it sends and changes nothing.
- The pages have no script.
"""
