"""Simplification and constant folding of StableHLO ops."""
