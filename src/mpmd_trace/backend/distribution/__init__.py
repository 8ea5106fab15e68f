"""A plan over several processes: who does what in which order, and how values get from one to another."""
