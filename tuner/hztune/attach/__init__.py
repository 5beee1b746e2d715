"""Processes that run: what their allocators hold, and what may be changed in them.

A process answers when it was started on hz with HZ_CONTROL=1, or with the agent (libhz-agent.so)
preloaded: `channel` asks, and tells what the kernel knows of any process; `diagnosis` knows what
can be asked, what the answers mean, and puts it all in words.
"""
