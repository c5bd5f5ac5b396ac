"""The paper (arXiv:2010.11929): its numbers, and ours beside them.

numbers   the numbers that the paper prints, by table and figure
runs      the runs behind the items, and our numbers from their files
items     the paper's tables and figures: their runs and what they show
claims    the paper's statements, tested on our runs
plots     figures drawn from plain numbers
pictures  figures drawn from the weights of runs
cost      the cost of runs, estimated before they start and measured after
released  numbers and pictures from the authors' released weights
page      the results as Markdown and HTML, from the sections of `report`
"""
