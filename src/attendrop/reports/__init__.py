"""Tables and figures made of finished runs."""
