"""Guards: damaged or deeply nested JSON is a clear error, not a crash."""

import json

import pytest

from vit_jax import config as config_lib
from vit_jax.interop import json_files
from vit_jax.runtime import json_text
from vit_jax.sweep import state
from vit_jax.workdir import environment, metrics

DEEP = 10**5


@pytest.mark.parametrize('start, end', [('[', ']'), ('{"a":', '}')])
def test_at_most_100_levels_are_read(start, end):
  found = json_text.loads(start * 99 + '[1]' + end * 99)
  assert json.dumps(found).count('[') in (1, 100)
  for levels in (100, 900, DEEP):
    with pytest.raises(json.JSONDecodeError, match='Nested in more than 100'):
      json_text.loads(start * levels + '[1]' + end * levels)


@pytest.mark.parametrize('levels', [900, DEEP])
def test_deeply_nested_files_are_reported_as_damaged(tmp_path, levels):
  text = '{"step":' + '[' * levels + ']' * levels + '}'
  (tmp_path / 'config.json').write_text(text)
  with pytest.raises(ValueError, match=r'config\.json is damaged \(Nested in'):
    config_lib.load(tmp_path)
  with pytest.raises(
    ValueError, match=r'config\.json is not readable JSON: Nes'
  ):
    json_files.read(tmp_path / 'config.json')
  (tmp_path / 'sweep.json').write_text(text)
  with pytest.raises(ValueError, match=r'sweep\.json is damaged \(Nested in'):
    state.recorded(tmp_path)
  # Such lines are skipped, like other damaged lines.
  (tmp_path / metrics.FILE).write_text(text + '\n{"step": 2}\n')
  assert metrics.read(tmp_path) == [{'step': 2}]
  (tmp_path / environment.FILE).write_text(text + '\n{"commit": "a"}\n')
  assert environment.commits(tmp_path) == ('a',)
  (tmp_path / 'events.jsonl').write_text(text + '\n')
  events = state.Events(tmp_path)
  assert not events.attempts
  events.close()
