"""A device's peak bfloat16 rate, for the MFU, and its peak memory use."""

import jax

from vit_jax.plan import chips


def tflops(device_kind: str) -> float | None:
  """Returns the peak of a `device_kind` in TFLOP/s; None if it is not known."""
  peak = chips.peak_flops(device_kind)
  return None if peak is None else peak / 1e12


def of_device(given: float | None) -> float | None:
  """Returns `given`, or if it is None the peak of JAX's first device."""
  return given or tflops(jax.devices()[0].device_kind)


def mfu(
  images_per_sec: float, forward_macs: int, devices: int, peak: float | None
) -> float | None:
  """Returns the model FLOPs utilisation of training.

  Args:
    images_per_sec: the rate of all devices together.
    forward_macs: multiply-accumulates of one image's forward pass. The backward
      pass has twice as many, and each counts as two operations.
    devices: the number of devices.
    peak: TFLOP/s of one device; None if it is not known.

  Returns:
    A number in 0..1; None without a peak.
  """
  if not peak:
    return None
  return images_per_sec * 3 * 2 * forward_macs / (devices * peak * 1e12)


def memory_gib() -> float | None:
  """Returns this process's peak memory on a device; None if unknown."""
  stats = jax.local_devices()[0].memory_stats() or {}
  peak = stats.get('peak_bytes_in_use')
  return None if peak is None else peak / 2**30
