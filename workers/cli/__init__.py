"""The `turnstream` command.

`feed` puts events in, `operate` runs and looks after the pipeline, `examine` says what is wrong, `forget` forgets;
`ask`, `past`, `context` and `scopes` read, `evaluate` and `fit` measure how well, `demo` shows all of it.
"""

from __future__ import annotations

import typer

from workers.cli import ask, common, context, demo, evaluate, examine, feed, fit, forget, operate, past, scopes

app = typer.Typer(
    name="turnstream",
    help="Long-term memory for chat, as an event pipeline.",
    epilog="Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 a server does not answer, 4 damaged data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (
    operate.up,
    operate.prepare,
    demo.demo,
    feed.publish,
    feed.backfill,
    operate.wait,
    ask.retrieve,
    evaluate.evaluate,
    fit.fit,
    past.search,
    past.window,
    past.recent,
    scopes.scopes,
    context.context,
    operate.stats,
    forget.forget,
    operate.settings,
    examine.doctor,
    feed.schema,
    operate.server,
    operate.ingester,
    operate.worker,
    operate.metrics,
):
    app.command()(verb)
app.add_typer(operate.dead_letters, name="dead-letters")


def main() -> None:
    """Run the command line."""
    common.outlive_reader_of_stdout()
    with common.exit_codes():
        app()
