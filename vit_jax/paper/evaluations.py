"""What a run's `config.json` says of its evaluations."""

from collections.abc import Mapping
from typing import Any


def validated_by(config: Mapping[str, Any]) -> str:
  """The metric that says which step of a run is its best; '' if none does.

  Args:
    config: as `config.load` returns it, whose evaluations are sorted by name.
  """
  if best := config.get('checkpoint', {}).get('best', ''):
    return best
  names = [
    name
    for name, section in config.get('evals', {}).items()
    if section.get('kind') == 'classification'
  ]
  if not names:
    return ''
  return f'{"validation" if "validation" in names else names[0]}/accuracy'


def few_shots(config: Mapping[str, Any]) -> set[str]:
  """The names of a run's few-shot evaluations."""
  return {
    name
    for name, section in config.get('evals', {}).items()
    if section.get('kind') == 'few_shot'
  }
