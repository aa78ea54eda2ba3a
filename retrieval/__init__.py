"""Who reads: synchronous, in the bot's own process, with no broker and no Celery."""
