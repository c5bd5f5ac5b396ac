"""Reads from a run's `config.json` which evaluations the run has."""

from collections.abc import Mapping
from typing import Any


def validated_by(config: Mapping[str, Any]) -> str:
  """Returns the metric that chooses a run's best step; '' if there is none.

  Args:
    config: as `config.load` returns it, with evaluations sorted by name.
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
  """Returns the names of a run's few-shot evaluations."""
  return {
    name
    for name, section in config.get('evals', {}).items()
    if section.get('kind') == 'few_shot'
  }
