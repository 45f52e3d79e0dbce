"""dpcompare - every way of training GPT-2 on several processors, side by side; see __main__.py."""
