"""Programs that start a run on TPUs; see README.md in this folder."""
