"""Reports for people of what the compiler did: timelines, graphs, explanations."""
