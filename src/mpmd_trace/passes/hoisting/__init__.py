"""Once per step instead of once per microbatch.  See `docs/hoisting.md`."""
