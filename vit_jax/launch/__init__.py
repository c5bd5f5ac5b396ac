"""Programs that bring a run onto TPUs: see README.md of the folder `launch/`.

As `vit_jax.configs`: in a checkout this stands for the folder at its top, in an
installed package that folder lies here.
"""

import pathlib

__path__ = [str(pathlib.Path(__file__).resolve().parents[2] / 'launch')]
