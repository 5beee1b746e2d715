"""What earlier studies on this machine learned, as the odds with which a search begins.

A study that ends leaves a *lesson* in the state directory; a study that begins weighs the lessons
of its machine and objective. They decide what is measured sooner. The proof knows nothing of them.
"""

from hztune.prior.lesson import Gain, Learned, Lesson, Subject
from hztune.prior.weighing import NOTHING, Prior, weighed

__all__ = ["NOTHING", "Gain", "Learned", "Lesson", "Prior", "Subject", "weighed"]
