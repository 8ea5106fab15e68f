"""One op that computes values that are needed early and others that are not becomes two ops."""
