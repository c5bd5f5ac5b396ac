"""Programs that measure, run by hand; README.md lists them."""
