"""Programs that bring a run onto TPUs; see README.md here."""
