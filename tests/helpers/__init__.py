"""Shared code of the tests: small components, faulty plugins and tasks, runs in processes, and readers of text."""
