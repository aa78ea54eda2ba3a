"""Who runs the pipeline: the ingester, the Celery workers, their supervisor, the embedded server, the command."""
