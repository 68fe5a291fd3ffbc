"""Views for the owner of the data: what is stored, spent and sent."""
