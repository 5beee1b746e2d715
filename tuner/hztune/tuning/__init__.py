"""`hztune tune`: a request, the story of its study, and the results directory.

`request` judges what was asked and is imported in a moment; `session`, which carries it out, takes
a second for all that searches and stores. So a request is judged once, before that import.
"""
