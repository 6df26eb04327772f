"""How is a plan shown to a person? `text.report` makes the string that `print(plan)` shows."""
