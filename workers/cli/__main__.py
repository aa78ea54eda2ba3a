"""`python -m workers.cli`: what the supervisor starts, with the interpreter it runs itself."""

from workers.cli import main

main()
