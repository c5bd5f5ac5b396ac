"""Names of classes survive their file."""

from vit_jax import class_names


def test_names_come_back_in_order(tmp_path):
  names = ('b', 'a b', '', 'é', 'line\nbreak', 'form\x0cfeed')
  class_names.write(tmp_path, names)
  assert class_names.read(tmp_path) == (
    *('b', 'a b', '', 'é'),
    *(r'line\nbreak', r'form\x0cfeed'),
  )


def test_no_file_is_no_names(tmp_path):
  assert class_names.read(tmp_path) == ()
