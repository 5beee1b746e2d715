"""`hztune tune`: a request, the story of its study, and the results directory.

`request` judges what was asked before `session` is imported, which takes a second.
"""
