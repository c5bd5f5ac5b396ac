"""Tests of pages from templates."""

import base64
import io

import jinja2
import numpy as np
import PIL.Image
import pytest

from vit_jax import pages


def test_a_page_is_whole_and_escapes_its_values(tmp_path):
  template = tmp_path / 'a.html'
  template.write_text(
    "{% extends 'base.html' %}\n"
    '{% block style %}p { color: red; }{% endblock %}\n'
    '{% block content %}<p>{{ text }}</p>{% endblock %}\n'
  )
  page = pages.render(template, title='T', text='<b>\x1b\n{{ title }}')
  assert '<title>T</title>' in page
  assert '--back' in page
  assert 'color: red' in page
  # Values are no templates, and no control character reaches the page.
  assert '<p>&lt;b&gt;\\x1b\n{{ title }}</p>' in page


def test_a_name_that_is_not_given(tmp_path):
  (tmp_path / 'a.html').write_text('{{ missing }}')
  with pytest.raises(jinja2.UndefinedError, match='missing'):
    pages.render(tmp_path / 'a.html')


@pytest.mark.parametrize(
  'size, expected, kind',
  [((64, 30), (64, 30), 'png'), ((320, 200), (160, 100), 'jpeg')],
)
def test_small_pictures(size, expected, kind):
  width, height = size
  image = np.full((height, width, 3), (200, 100, 50), np.uint8)
  head, _, content = pages.small_picture(image).partition(',')
  assert head == f'data:image/{kind};base64'
  found = PIL.Image.open(io.BytesIO(base64.b64decode(content)))
  assert found.size == expected
  np.testing.assert_allclose(
    np.asarray(found.convert('RGB'))[5, 5], (200, 100, 50), atol=6
  )
