"""The paper's claims, written down before any run, and their answers.

A claim (`claim.Claim`) is a sentence of the paper and the tests that decide
it. Each test is a weighted sum of means over pre-trainings. `counts` tells how
many pre-trainings a claim needs, and `answers` decides it from finished runs by
the methods in `decision`. The other modules have the claims themselves, a
function for each item, which takes one of `design.SCALES`.
"""
