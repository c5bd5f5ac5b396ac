"""Makes pictures with details, as different as photographs."""

import cv2
import numpy as np

from vit_jax import data
from vit_jax.dedup import sets


def picture(seed, height=120, width=150):
  """Returns clouds with sharp shapes, uint8 [height, width, 3]."""
  rng = np.random.default_rng(seed)
  clouds = rng.normal(size=(6, 8, 3)).astype(np.float32)
  image = 128 + 40 * cv2.resize(
    clouds, (width, height), interpolation=cv2.INTER_CUBIC
  )
  for _ in range(25):
    centre = rng.integers(0, (width, height)).tolist()
    radius = int(rng.integers(3, 18))
    colour = rng.integers(0, 256, 3).tolist()
    cv2.circle(image, centre, radius, colour, -1)
  return np.clip(image, 0, 255).astype(np.uint8)


def grey(image):
  """Returns a picture in grey, uint8 [h, w]."""
  return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def jpeg(image, quality=95):
  """Returns a picture as JPEG."""
  how = [cv2.IMWRITE_JPEG_QUALITY, quality]
  return cv2.imencode('.jpg', image[..., ::-1], how)[1].tobytes()


class Pictures(data.Source):
  """Images in memory."""

  def __init__(self, images, spec='pictures', split='train'):
    self.info = data.SourceInfo(spec, {split: len(images)}, ('any',))
    self.images = images

  def read(self, split, index):
    return data.Record(self.images[index], 0, f'{split}/{index}')


def write(folder, images):
  """Writes pictures as FOLDER/NUMBER.png."""
  folder.mkdir(parents=True)
  for number, image in enumerate(images):
    path = folder / f'{number}.png'
    if isinstance(image, bytes):
      path.write_bytes(image)
    else:
      cv2.imwrite(str(path), image[..., ::-1])


def opened(images, spec='pictures', split='train', selected=''):
  """Returns images in memory as a set to compare."""
  source = Pictures(images, spec, split)
  return sets.Set(data.View(source, selected or split), upright=False)
