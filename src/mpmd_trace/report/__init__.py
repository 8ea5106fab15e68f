"""What the compiler did, for people: timelines, graphs, explanations."""
