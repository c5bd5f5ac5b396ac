"""Draws attention over images: where the model looked, and what it said."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vit_jax.inspection import figures

_MARGIN = 8
_TEXT = 14  # Pixels.
_LEAST_SIDE = 224  # Smaller images are enlarged, so that the text has room.


def draw(image: np.ndarray, rollout: np.ndarray, text: str) -> Image.Image:
  """Draws an image beside the same image under its attention, as in Figure 6.

  Args:
    image: what the model saw, uint8 [height, width, channels].
    rollout: float [rows, columns], how much of the output comes from each
      patch.
    text: a line below them, such as the prediction.
  """
  factor = max(1, -(-_LEAST_SIDE // min(image.shape[:2])))
  image = np.broadcast_to(image, (*image.shape[:2], 3))  # Grey ones, too.
  image = image.repeat(factor, axis=0).repeat(factor, axis=1)
  height, width = image.shape[:2]
  shown = (255 * figures.overlay(image, rollout)).round().astype(np.uint8)
  page = Image.new(
    'RGB',
    (2 * width + 3 * _MARGIN, height + _TEXT + 4 * _MARGIN),
    'white',
  )
  page.paste(Image.fromarray(image), (_MARGIN, _MARGIN))
  page.paste(Image.fromarray(shown), (width + 2 * _MARGIN, _MARGIN))
  ImageDraw.Draw(page).text(
    (_MARGIN, height + 2 * _MARGIN),
    text,
    fill='black',
    font=ImageFont.load_default(_TEXT),
  )
  return page
