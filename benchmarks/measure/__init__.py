"""What the programs measure, without their flags."""
