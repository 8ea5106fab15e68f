"""Messages for people, and the places that they are about."""
