"""The demo: sample transcripts, a pipeline of their own, and a report of what became of every event.

Owns one temporary folder, removed at the end whatever the end is. After a SIGKILL the folder stays behind; on Linux
the pipeline ends with the demo all the same.
"""
