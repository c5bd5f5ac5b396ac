"""Texts on the results and the progress of a sweep."""

import statistics
from collections.abc import Mapping, Sequence


def mean_and_std(runs: Sequence[Mapping[str, float]]) -> dict[str, str]:
  """Returns mean and standard deviation of accuracies over runs, in percent.

  The standard deviation is that of a sample (n - 1). A single run has none.
  """
  keys = {key for metrics in runs for key in metrics}
  result = {}
  for key in keys - {'train/accuracy'}:
    name, _, metric = key.rpartition('/')
    if metric != 'accuracy':
      continue
    values = [100 * metrics[key] for metrics in runs if key in metrics]
    result[name] = f'{statistics.fmean(values):.2f}'
    if len(values) > 1:
      result[name] += f' ± {statistics.stdev(values):.2f}'
  return result


def accuracies(metrics: Mapping[str, float]) -> str:
  """Returns the accuracy of each evaluation, such as `validation 93.10%`."""
  found = sorted(mean_and_std([metrics]).items())
  return ', '.join(f'{name} {text}%' for name, text in found)


def duration(seconds: float) -> str:
  """Returns a text such as `2 h 5 min`, `3 min` or `40 s`."""
  minutes = round(seconds / 60)
  if minutes >= 60:
    return f'{minutes // 60} h {minutes % 60} min'
  return f'{minutes} min' if seconds >= 60 else f'{seconds:.0f} s'
