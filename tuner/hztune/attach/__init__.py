"""Processes that run: what their allocators hold, and what may be changed in them.

A process answers when it was started on hz with HZ_CONTROL=1, or with the agent (libhz-agent.so)
preloaded: `channel` asks, `questions` knows what can be asked and what the answers mean. Of any
other process `outside` tells what the kernel knows. `diagnosis` puts it all in words.
"""
