"""What happens to a turn, stage by stage: publish, ingest, chunk, embed, summarise, index. Knows no Celery."""
