"""A plan as text, HTML and pictures.

text     the report of `print(plan)`
html     the page of `Plan.to_html`, and the snippet in notebooks; its files are in `templates`
figures  the numbers of a page
charts   a timeline as shapes
plots    a timeline by matplotlib
policies a plan as policies of `jax.checkpoint`, which `as_policies` finds
"""
