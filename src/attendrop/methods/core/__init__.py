"""Base classes, contexts, options, compatibility rules, composition and registry of methods."""
