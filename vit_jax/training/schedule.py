"""Learning-rate schedules.

They are built from a section of a config, whose keys `config.sections` lists:

    schedule = dict(name='cosine', peak=0.03, warmup_steps=500, end=0.0, ...)
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array], jax.Array]


def build_schedule(config: Mapping[str, Any], total_steps: int) -> Schedule:
  """Builds `schedule(step) -> learning rate` from the config's section.

  Each schedule is a rate that begins as `peak`. With the progress p from the
  end of the warm-up, 0, to that of the run, 1:

    linear     end + (peak - end) * (1 - p)
    cosine     end + (peak - end) * (1 + cos(pi * p)) / 2
    constant   peak
    staircase  peak * factor ** n after n of the `boundaries`, which are
               fractions of the run; this is BiT's schedule.
    rsqrt      peak / sqrt(1 + s / timescale), s steps after the warm-up; that
               of arXiv:2106.04560.

  At step t of the warm-up, a share of t / warmup_steps of the rate replaces
  `warmup_start`. In the last `cooldown_steps` of constant and rsqrt, the share
  of the steps that are left replaces `end`.

  Raises:
    ValueError: warm-up and cool-down are longer than the run, or not all values
      are filled in.
  """
  peak, warmup = config['peak'], config['warmup_steps']
  start, cooldown = config['warmup_start'], config.get('cooldown_steps', 0)
  if not 0 <= warmup < max(total_steps, 1):
    raise ValueError(
      f'schedule.warmup_steps={warmup} must be at least 0 and below'
      f' total_steps={total_steps}; shorten one or lengthen the other.'
    )
  if total_steps and warmup + cooldown > total_steps:
    raise ValueError(
      f'schedule.cooldown_steps={cooldown} must be at most'
      f' total_steps={total_steps} without the {warmup} of the warm-up; shorten'
      ' one or lengthen the other.'
    )
  if config['warmup_epochs']:
    raise ValueError(
      f'schedule.warmup_epochs={config["warmup_epochs"]} needs the length of an'
      ' epoch, which is not known here: set data.num_examples, or'
      ' schedule.warmup_steps in its place.'
    )

  def progress(t):
    return jnp.clip((t - warmup) / max(total_steps - warmup, 1), 0.0, 1.0)

  def linear(t):
    end = config['end']
    return end + (peak - end) * (1 - progress(t))

  def cosine(t):
    end = config['end']
    return end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress(t)))

  def constant(t):
    return jnp.full_like(t, peak)

  def staircase(t):
    edges = [b * total_steps for b in config['boundaries']]
    drops = (t >= jnp.asarray(edges, jnp.float32)).sum()
    return peak * jnp.asarray(config['factor'], jnp.float32) ** drops

  def rsqrt(t):
    late = jnp.maximum(t - warmup, 0.0)
    return peak / jnp.sqrt(1 + late / config['timescale'])

  rates = linear, cosine, constant, staircase, rsqrt
  rate = {function.__name__: function for function in rates}[config['name']]

  def schedule(step):
    t = jnp.asarray(step, jnp.float32)
    value = rate(t)
    if warmup:
      share = jnp.minimum(1.0, t / warmup)
      value = value * share
      if start:
        value += start * (1 - share)
    if cooldown:
      share = jnp.minimum(1.0, (total_steps - t) / cooldown)
      value = value * share + config['end'] * (1 - share)
    return value

  return schedule
