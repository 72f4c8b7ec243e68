"""Celery at work: tasks that are done at once, a little later, or at the second attempt, and a client that waits for their results.

    python celery_busy.py PORT work    a worker, as long as it lives
    python celery_busy.py PORT send    the client, as long as it lives; prints "busy" when results flow
"""

import sys

from celery import Celery

URL = f"redis://127.0.0.1:{sys.argv[1]}/0"
app = Celery("shop", broker=URL, backend=URL)
app.conf.update(task_acks_late=True, result_expires=600, broker_connection_retry_on_startup=True)


@app.task(name="shop.add")
def add(a, b):
    return a + b


@app.task(name="shop.again", bind=True)
def again(self, n):
    if self.request.retries < 1:
        raise self.retry(countdown=0.1)
    return n


def send():
    n = 0
    while True:
        results = [add.delay(n, 1), again.delay(n), add.apply_async((n, 2), countdown=0.2)]
        for result in results:
            result.get(timeout=100)
        n += 1
        if n == 5:
            print("busy", flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "send":
        send()
    else:
        app.worker_main(["worker", "--pool=solo", "--loglevel=CRITICAL"])
