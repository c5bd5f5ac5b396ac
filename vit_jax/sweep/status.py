"""Says how far a sweep is."""

from collections.abc import Mapping


def accuracies(metrics: Mapping[str, float]) -> str:
  """Returns the accuracy of each evaluation, such as `validation 93.10%`."""
  return ', '.join(
    f'{key.removesuffix("/accuracy")} {100 * value:.2f}%'
    for key, value in sorted(metrics.items())
    if key.endswith('/accuracy') and not key.startswith('train/')
  )


def duration(seconds: float) -> str:
  """Returns a text such as `2 h 5 min`, `3 min` or `40 s`."""
  minutes = round(seconds / 60)
  if minutes >= 60:
    return f'{minutes // 60} h {minutes % 60} min'
  return f'{minutes} min' if seconds >= 60 else f'{seconds:.0f} s'
