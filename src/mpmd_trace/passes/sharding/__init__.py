"""sharding passes."""
