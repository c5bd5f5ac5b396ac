"""The paper (arXiv:2010.11929): its numbers, and ours beside them.

numbers   what it prints, table by table and figure by figure
runs      the runs behind its items, which share them, and our numbers of them
items     its tables and figures: which runs, what is shown
claims    what it says of them, asked of our runs
plots     its figures from plain numbers; pictures: those drawn from weights
cost      what runs take, before and after
page      all of it in Markdown and HTML, from the sections of `report`
"""
