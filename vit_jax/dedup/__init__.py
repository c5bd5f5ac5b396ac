"""Near-duplicates between data sets: `python -m vit_jax.dedup`.

The paper cleans its pre-training sets of near-duplicates of test images. Its
detector is not published, so this one is our own:

  hashing.py   a perceptual hash per image, several per test image
  search.py    pairs whose hashes differ in few bits, by exact search
  matching.py  compares the pixels of such pairs
  work.py      does this block by block, resumable, shared by many machines
  similar.py   pairs with similar features of a trained model, on request
  report.py    pairs.csv and the lists of exclusions, from all blocks
  page.py      pairs.html, the pairs side by side

docs/dedup.md has what is found and what is not.
"""
