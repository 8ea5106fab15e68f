"""A placement of our own: unnamed code goes where the fewest bytes move in a whole step."""
