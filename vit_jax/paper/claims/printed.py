"""The paper's own numbers as a pilot for runs at its scale.

The paper prints no spread over pre-trainings, only that of three fine-tuning
runs of one model (Table 2), which is a lower bound. So the spreads below are
assumed: about three times those that are printed, and the paper's wording where
it calls accuracies alike.
"""

from vit_jax.paper import numbers
from vit_jax.paper.claims import masked_patch_claims, table_claims
from vit_jax.paper.claims.counts import Pilot
from vit_jax.paper.claims.measures import AVERAGE5, FewShot, Tuned, Vtab
from vit_jax.paper.numbers import means, values
from vit_jax.paper.runs import Pretraining, pretraining

# Percentage points over pre-trainings.
_SPREADS = {
  **{
    Tuned((task,)).name: spread
    for task, spread in (
      (values.IMAGENET, 0.15),
      (values.CIFAR10, 0.1),
      (values.CIFAR100, 0.2),
      (values.PETS, 0.3),
      (values.FLOWERS, 0.1),
    )
  },
  AVERAGE5.name: 0.15,
  FewShot().name: 0.4,
  **{Vtab(group).name: 0.5 for group in (*means.VTAB_GROUPS, 'mean')},
}


def pilot() -> Pilot:
  """Returns the printed accuracies, with assumed spreads."""
  found: dict[str, dict[str, list[float]]] = {}

  def note(measure, start: Pretraining, value: float) -> None:
    found.setdefault(measure.name, {})[start.name] = [value]

  for row, (data, task) in zip(
    numbers.TABLE_5.rows, numbers.ROWS_5, strict=True
  ):
    for model in numbers.TABLE_5.columns:
      cell = numbers.TABLE_5[row, model]
      if cell and task != values.REAL:
        note(Tuned((task,)), pretraining(model, data), cell.value)
  for row, (model, epochs) in zip(
    numbers.TABLE_6.rows, numbers.ROWS_6, strict=True
  ):
    start = Pretraining(model, values.JFT, epochs)
    cells = numbers.TABLE_6.row(row)
    note(AVERAGE5, start, means.average5(cells))
    for task in means.AVERAGE5:
      note(Tuned((task,)), start, cells[task])
  for column, (model, optimizer) in zip(
    numbers.TABLE_7.columns, numbers.COLUMNS_7, strict=True
  ):
    start = Pretraining(model, values.JFT, 7, optimizer.lower())
    note(AVERAGE5, start, numbers.TABLE_7['Average', column].value)
  for (row, column), cell in numbers.TABLE_8.cells.items():
    start = table_claims.positions('paper', row, column)
    note(FewShot(), start, 100 * cell.value)
  for column, (model, data) in zip(
    numbers.TABLE_9.columns, numbers.COLUMNS_9, strict=True
  ):
    for group, mean in means.vtab_means(numbers.TABLE_9.column(column)).items():
      note(Vtab(group), pretraining(model, data), mean)
  note(
    Tuned((values.IMAGENET,)),
    masked_patch_claims.MASKED,
    numbers.MASKED_PATCH['masked patches'].value,
  )
  return Pilot(found, {}, _SPREADS)
