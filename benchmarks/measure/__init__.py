"""The measurements of the benchmark programs, without their flags."""
