"""Guards: damaged or deeply nested JSON is a clear error, not a crash."""

import pytest

from vit_jax import config as config_lib
from vit_jax.runtime import json_text


def test_deeply_nested_json_is_an_error(tmp_path):
  text = '[' * 10**5 + ']' * 10**5
  with pytest.raises(ValueError, match='Nested too deeply'):
    json_text.loads(text)
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(ValueError, match=r'config\.json is damaged'):
    config_lib.load(tmp_path)
  with pytest.raises(ValueError, match=r'config\.json is not readable'):
    json_text.read(tmp_path / 'config.json')
