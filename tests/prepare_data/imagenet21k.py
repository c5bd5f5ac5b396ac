"""Writes a small stand-in for ImageNet-21k, and what must come of it."""

import collections
import io
import tarfile

import cv2
import numpy as np


def picture(rng):
  """Returns the bytes of a small JPEG."""
  pixels = np.empty((32, 32, 3), np.uint8)
  pixels[:] = rng.integers(256, size=3)
  pixels[8:24, 8:24] = rng.integers(256, size=3)
  pixels ^= rng.integers(16, size=pixels.shape, dtype=np.uint8)
  return cv2.imencode('.jpg', pixels)[1].tobytes()


def write(root, *, classes, images, corrupt, shared, nested='', seed=0):
  """Writes one tar file per synset, as the releases do.

  `corrupt` is the part of images that are damaged, `shared` that of images that
  lie in another synset's tar file too. `nested` is the name of a tar file that
  holds the others.

  Returns:
    Bytes of an image -> sorted names of its synsets, without damaged ones; and
    the names of the damaged images.
  """
  rng = np.random.default_rng(seed)
  names = [f'n{1440764 + i:08d}' for i in range(classes)]
  files = collections.defaultdict(list)  # Synset -> the bytes of its images.
  wanted, damaged = collections.defaultdict(set), []
  for name in names:
    for _ in range(images):
      data = picture(rng)
      if rng.random() < corrupt:
        damaged.append(f'{name}_{len(files[name])}.JPEG')
        files[name].append(data[:300])  # Many of these are equal.
        continue
      holders = {name}
      if rng.random() < shared:
        holders.add(str(rng.choice(names)))
      for holder in holders:
        files[holder].append(data)
      wanted[data] |= holders
  tars = {name: _tar_of(name, files[name]) for name in names}
  root.mkdir(parents=True, exist_ok=True)
  if nested:
    content = {f'{nested}/{name}.tar': tar for name, tar in tars.items()}
    (root / f'{nested}.tar').write_bytes(tar_file(content))
  else:
    for name, tar in tars.items():
      (root / f'{name}.tar').write_bytes(tar)
  return {data: sorted(of) for data, of in wanted.items()}, damaged


def _tar_of(name, files):
  return tar_file({f'{name}_{i}.JPEG': data for i, data in enumerate(files)})


def tar_file(content):
  """Returns a tar file of path -> bytes."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode='w') as tar:
    for path, data in content.items():
      info = tarfile.TarInfo(path)
      info.size = len(data)
      tar.addfile(info, io.BytesIO(data))
  return buffer.getvalue()
