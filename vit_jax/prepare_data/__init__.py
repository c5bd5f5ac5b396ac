"""Copies images of any data spec into TFDS's ArrayRecord layout, verified.

The command `python -m vit_jax.prepare_data` reads top to bottom in
`__main__.py` and `prepare.py`: open the source (`tars.py` for tar files),
estimate the bytes, find identical images, write the shards (`shards.py`, with
`images.py` for each image), and describe the result (`report.py`). Data sets of
TFDS take another way (`tfds_copy.py`).

Each step leaves files in a folder `.preparing`, by which a killed command goes
on and several machines share the work (`job.py`). The result depends on none of
that.
"""
