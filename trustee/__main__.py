"""`python -m trustee` is `pharoah-trustee`."""

from trustee.cli import app

if __name__ == "__main__":
    app(prog_name="pharoah-trustee")
