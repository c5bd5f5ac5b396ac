"""Planning a run before renting the machine for it."""
