"""AttendOut: an attacker, a defender, and a generator that learns which attention to drop."""
