"""The trustee: holds a share of the token key and mask streams; it never sees a count or a descriptor."""
