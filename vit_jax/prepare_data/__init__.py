"""Copies images of any data spec into TFDS's ArrayRecord layout, verified.

The command `python -m vit_jax.prepare_data` reads top to bottom in
`__main__.py` and `prepare.py`: open the source (`tars.py` for tar files),
estimate the bytes, find equal images if they are to be merged (`merging.py`),
write the shards (`job.py`, with `images.py` for each image), and describe the
result.

A shard appears when it is complete, so a killed command goes on with the shards
that are missing, and several machines share the work. The result depends on
none of that.
"""
