"""Deciding: one kind of question, asked of pairs at planned looks.

A proof, a front, `hztune verify`, the gate for CI and the panel each ask a short list of questions:
is the mean of these log ratios above a margin? The answer is yes, no, or open.
"""

from hztune.decide.question import Answer, Looks, Question, all_of

__all__ = ["Answer", "Looks", "Question", "all_of"]
