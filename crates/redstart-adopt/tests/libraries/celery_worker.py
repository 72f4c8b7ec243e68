"""A Celery worker as the other side of a test.

    python celery_worker.py PORT QUEUE [BROKER_TRANSPORT_OPTIONS RESULT_BACKEND_TRANSPORT_OPTIONS]

The options are JSON.
"""

import json
import sys

from celery import Celery

PORT, QUEUE = sys.argv[1], sys.argv[2]
URL = f"redis://127.0.0.1:{PORT}/0"
app = Celery("shop", broker=URL, backend=URL)
app.conf.worker_hijack_root_logger = False
if len(sys.argv) > 3:
    app.conf.broker_transport_options = json.loads(sys.argv[3])
    app.conf.result_backend_transport_options = json.loads(sys.argv[4])


@app.task(name="shop.add")
def add(a, b=0):
    return a + b


@app.task(name="shop.fail")
def fail():
    raise ValueError("no luck")


app.worker_main(["worker", "--pool=solo", "--queues", QUEUE, "--loglevel=ERROR", "--without-gossip", "--without-mingle"])
