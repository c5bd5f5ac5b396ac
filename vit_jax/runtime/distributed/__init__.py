"""Several processes as one run: start-up, supervision, small agreements.

`connected` finds out whether this process is one of several, waits until all
have come, starts JAX's distributed runtime, and ends this process with a named
cause when another is lost. `broadcast` and `any_true` let the processes agree
on small values without touching a device.
"""

from vit_jax.runtime.distributed.session import (
  any_true,
  broadcast,
  connected,
  stop_all,
)

__all__ = ['any_true', 'broadcast', 'connected', 'stop_all']
