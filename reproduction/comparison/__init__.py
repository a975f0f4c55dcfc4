"""Other methods that a user could take instead of a student, on the same network and data."""
