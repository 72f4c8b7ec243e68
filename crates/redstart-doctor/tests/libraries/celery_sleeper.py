"""A Celery worker that holds two messages as long as it lives: a task at work, and one that is due later.

    python celery_sleeper.py PORT COUNTDOWN
"""

import sys
import time

from celery import Celery

app = Celery("shop", broker=f"redis://127.0.0.1:{sys.argv[1]}/0")
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)


@app.task(name="shop.sleep")
def sleep():
    time.sleep(600)


if __name__ == "__main__":
    # The one that is due later is taken first: the other one keeps the only thread of the worker.
    sleep.apply_async(countdown=int(sys.argv[2]))
    sleep.delay()
    options = ["--pool=solo", "--loglevel=CRITICAL", "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", *options])
