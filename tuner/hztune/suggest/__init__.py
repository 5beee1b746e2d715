"""What is worth measuring of a program: a look at it, three measurements, and earlier profiles.

`look` runs the program twice for a few seconds, as it is and recorded; `sight` is what was seen.
`ideas` holds a function for each measurement that could be made: when it is worth making, and why.
`earlier` finds what is known of the program and this machine, `suggested_text` says it to people.
Nothing is compared here, and nothing is claimed.
"""
