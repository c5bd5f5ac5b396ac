"""Peaks: a device's bfloat16 rate, for the MFU, and its memory in use."""

import jax

# JAX's `device_kind` (the part of it that tells) -> TFLOP/s of dense bfloat16
# products with float32 sums, of one JAX device. Sources: cloud.google.com/tpu
# (a core is half a chip on v2 and v3) and NVIDIA's data sheets, without
# sparsity. The first that matches counts.
_TFLOPS = (
  ('TPU v2', 22.5),
  ('TPU v3', 61.5),
  ('TPU v4', 275.0),
  ('TPU v5 lite', 197.0),
  ('TPU v5e', 197.0),
  ('TPU v5', 459.0),
  ('TPU v6', 918.0),
  ('B200', 2250.0),
  ('H200', 989.0),
  ('H100 PCIe', 756.0),
  ('H100', 989.0),
  ('A100', 312.0),
  ('L40S', 362.0),
  ('L4', 121.0),
)


def tflops(device_kind: str) -> float | None:
  """The peak of a device by its `device_kind`; None if it is not known."""
  for name, peak in _TFLOPS:
    if name.lower() in device_kind.lower():
      return peak
  return None


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
