"""The Celery app: JSON only, no results, no beat, no ETA; a task is a doorbell that may be lost or doubled.

Why: early acknowledgement. With late acknowledgement celery 5.7 ends a worker whose broker restarts during a task;
what a lost doorbell leaves undone, the sweeper rings again.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from celery import Celery

from pipeline.crash_points import CrashPoint, passing

EMBED_TURNS: Final = "turnstream.embed_turns"
SUMMARISE_SESSIONS: Final = "turnstream.summarise_sessions"
CONDENSE_SESSIONS: Final = "turnstream.condense_sessions"
PUBLISH_SNAPSHOTS: Final = "turnstream.publish_snapshots"
QUEUES: Final = (EMBED_TURNS, SUMMARISE_SESSIONS, CONDENSE_SESSIONS, PUBLISH_SNAPSHOTS)
"""One queue per task, in the order in which a worker looks into them."""


def make_app(redis_url: str, *, timeout_s: float) -> Celery:
    """Build the app on a broker.

    Args:
        redis_url: ``redis://``, ``rediss://`` or ``unix://``, as everywhere in Turnstream.
        timeout_s: connect and reply timeout of the broker's connections.
    """
    app = Celery("turnstream", broker=_broker_url(redis_url), set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=False,
        # No limit. A worker fetches none while it works, since it works in its event loop; but a message whose
        # acknowledgement failed, its server gone, keeps counting, and with a limit the worker would wait for ever.
        worker_prefetch_multiplier=0,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # none is: all are acked before they run
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,  # see workers.consumer
        broker_pool_limit=2,
        broker_transport_options={
            "queue_order_strategy": "priority",
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "health_check_interval": 10,
            # A doorbell doubled by the visibility timeout does no harm; keep it rare.
            "visibility_timeout": 3_600,
        },
        task_routes={name: {"queue": name} for name in QUEUES},
        task_default_queue=EMBED_TURNS,
        task_create_missing_queues=True,
    )
    return app


def ring(app: Celery, task: str, scopes: list[str], *, scopes_per_task: int) -> None:
    """Send doorbells for scopes, many keys to a task.

    Raises:
        kombu.exceptions.OperationalError: the broker cannot be reached; the sweeper rings again.
    """
    for start in range(0, len(scopes), scopes_per_task):
        passing(CrashPoint.BEFORE_RING)
        app.send_task(
            task, args=[scopes[start : start + scopes_per_task]], queue=task, retry=False, ignore_result=True
        )
        passing(CrashPoint.AFTER_RING)


def _broker_url(redis_url: str) -> str:
    parts = urlsplit(redis_url)
    if parts.scheme == "unix":
        login = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        query = re.sub(
            r"\bdb=", "virtual_host=", parts.query
        )  # the same database as the stream's, by kombu's name for it
        return f"redis+socket://{login}{parts.path}" + (f"?{query}" if query else "")
    return redis_url
