"""Guards: a ledger in a bucket keeps its lines."""

from vit_jax.workdir import ledger


def test_lines_are_added(bucket):
  path = ledger.checked('gs://bucket/shared/ledger.jsonl')
  for name in 'ab':
    ledger.append(path, {}, {}, config=name, predicted_ms=1, measured_ms=None)
  assert [one['config'] for one in ledger.read(path)] == ['a', 'b']
