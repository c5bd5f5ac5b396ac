"""Where images and labels come from: one file for each kind of data spec."""
