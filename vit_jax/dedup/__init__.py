"""Near-duplicates between data sets: `python -m vit_jax.dedup`.

The paper cleans its pre-training sets of near-duplicates of test images. Its
detector is not published, so this one is our own:

  sets.py      the images to compare
  hashing.py   a perceptual hash per image, several per test image
  matching.py  compares the pixels of such pairs
  work.py      pairs with near hashes, by faiss; all of this block by block,
               resumable, shared by many machines
  report.py    pairs.csv, the lists of exclusions and pairs.html

docs/dedup.md has what is found and what is not.
"""
