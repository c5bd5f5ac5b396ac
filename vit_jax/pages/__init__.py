"""Self-contained HTML pages from templates, in one style.

text = pages.render(pathlib.Path(__file__).with_name('page.html'), rows=rows)

A template is Jinja2. It begins with `{% extends 'base.html' %}`, and fills its
blocks `style`, `content` and `script`; `base.html` needs `title`. All values
are escaped, also characters that HTML cannot hold.
"""

import base64
import functools
import pathlib
from typing import Any

import cv2
import jinja2
import numpy as np

from vit_jax.runtime import printable

_HERE = pathlib.Path(__file__).parent
# What `base.html` includes, for pages without a template.
STYLE = _HERE / 'style.css'
# The longer side of a small picture, in pixels.
_SIDE = 160
# Images up to this side are kept exactly: JPEG would blur them.
_EXACT = 64


def render(template: pathlib.Path, **values: Any) -> str:
  """Returns a page.

  Args:
    template: a file; it may also name files beside it and in `vit_jax/pages`.
    **values: the names that the template uses.

  Raises:
    jinja2.UndefinedError: the template uses another name.
  """
  found = environment(template.parent).get_template(template.name)
  return found.render(**values)


@functools.cache
def environment(folder: pathlib.Path) -> jinja2.Environment:
  """Returns what reads the templates of a folder; callers may add filters."""

  def visible(value: Any) -> Any:
    return printable.text(value) if type(value) is str else value

  return jinja2.Environment(
    loader=jinja2.FileSystemLoader([folder, _HERE]),
    autoescape=lambda name: name is not None and name.endswith('.html'),
    undefined=jinja2.StrictUndefined,
    finalize=visible,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
  )


def small_picture(image: np.ndarray) -> str:
  """Returns an image, uint8 [h, w, 3], as a small `data:` URI."""
  height, width = image.shape[:2]
  scale = _SIDE / max(height, width)
  if scale < 1:
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
  kind = 'png' if max(height, width) <= _EXACT else 'jpeg'
  encoded = cv2.imencode(f'.{kind}', np.ascontiguousarray(image[..., ::-1]))[1]
  return data_uri(encoded.tobytes(), kind)


def data_uri(content: bytes, kind: str) -> str:
  """Returns the bytes of a file of images, of kind `png` or `jpeg`."""
  return f'data:image/{kind};base64,{base64.b64encode(content).decode()}'
