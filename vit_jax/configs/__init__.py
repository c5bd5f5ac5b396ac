"""The configs and sweeps that come with the code.

In a checkout this stands for the folder `configs/` at its top; in an installed
package that folder lies here, in place of this file (setup.py). So
`from vit_jax.configs import pretrain` is right in both.
"""

import pathlib

__path__ = [str(pathlib.Path(__file__).resolve().parents[2] / 'configs')]
