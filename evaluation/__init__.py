"""The evaluation: the paper's experiments, those beyond it, the systems to compare with, figures and the report.

Not part of what is installed: it stands beside `src` in the checkout, and `tara bench paper` finds it there.
"""
