"""The IR: types, attributes, ops, text form, diagnostics.  Imports nothing else of the project."""
