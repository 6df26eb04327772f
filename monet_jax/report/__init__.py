"""How is an answer shown to a person? As text, as a page, as plots.

text     what `print(plan)` shows
answers  what `print` shows of the answers of `diff`, `fit` and `sweep`
html     what `Plan.to_html` writes, and what notebooks show; its files are in `templates`
charts   a timeline as shapes
plots    timelines and sweeps by matplotlib
claims, results  what benchmarks leave behind
"""
