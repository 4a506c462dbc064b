"""What methods are made of: base types, what they are given, options, rules, composition and the registry."""
