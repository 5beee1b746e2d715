"""What is worth measuring of a program: a look at it, three measurements, and earlier profiles.

`look` runs the program twice for a few seconds, as it is and recorded: what was seen is a `Sight`.
`ideas` names each measurement that could be made: when it is worth making, why, and its command.
`suggested` puts it together with what earlier profiles say. Nothing is compared or claimed here.
"""
