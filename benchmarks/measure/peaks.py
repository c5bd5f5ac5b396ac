"""Peaks: a device's bfloat16 rate, for the MFU, and its memory in use."""

import jax

from vit_jax.plan import peaks


def tflops(device_kind: str) -> float | None:
  """The peak of a device by its `device_kind`; None if it is not known."""
  peak = peaks.of_device_kind(device_kind)
  return None if peak is None else peak / 1e12


def of_device(given: float | None) -> float | None:
  """`given` if there is one, or else the peak of JAX's first device."""
  return given or tflops(jax.devices()[0].device_kind)


def mfu(
  images_per_sec: float, forward_macs: int, devices: int, peak: float | None
) -> float | None:
  """Model FLOPs utilisation of training.

  Args:
    images_per_sec: of all devices together.
    forward_macs: multiply-accumulates of one image's forward pass; the
      backward pass has twice as many, and each is two operations.
    devices: how many there are.
    peak: TFLOP/s of one of them; None if it is not known.

  Returns:
    0..1; None without a peak.
  """
  if not peak:
    return None
  return images_per_sec * 3 * 2 * forward_macs / (devices * peak * 1e12)


def memory_gib() -> float | None:
  """The most memory that this process has had on a device; None if unknown."""
  stats = jax.local_devices()[0].memory_stats() or {}
  peak = stats.get('peak_bytes_in_use')
  return None if peak is None else peak / 2**30
