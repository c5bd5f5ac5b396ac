"""Copies images of any data spec into TFDS's ArrayRecord layout, verified.

The command `python -m vit_jax.prepare_data` reads top to bottom in
`__main__.py`: describe the job (`job.py`), estimate its bytes (`budget.py`),
find identical images (`identical.py`), write the shards (`shards.py`, with
`images.py` for each image), and describe the result (`finish.py`, `report.py`).

Each step leaves files in a folder `.preparing`, by which a killed command goes
on and several machines share the work. The result depends on none of that.
"""
