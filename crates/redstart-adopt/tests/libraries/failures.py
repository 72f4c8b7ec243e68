"""Jobs of RQ and Celery that failed, that are tried again, and that run.

    python failures.py PORT QUEUE

Prints "ready" once all of them are there, and keeps them until its stdin closes.
"""

import ctypes
import os
import signal
import sys
import time

import redis
import rq
from celery import Celery

PORT, QUEUE = int(sys.argv[1]), sys.argv[2]
URL = f"redis://127.0.0.1:{PORT}/0"
client = redis.Redis(port=PORT)
app = Celery("shop", broker=URL, backend=URL)
app.conf.worker_hijack_root_logger = False


@app.task(name="shop.again", bind=True, max_retries=5)
def again(self):
    raise self.retry(exc=ValueError("no luck"), countdown=600)


def in_a_process(work):
    child = os.fork()
    if child == 0:
        # It ends with its parent, also if that is killed.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        work()
        os._exit(0)
    return child


def failing():
    rq.SimpleWorker([queue], connection=redis.Redis(port=PORT)).work(burst=True, logging_level="CRITICAL")


def holding():
    rq.SimpleWorker([held], connection=redis.Redis(port=PORT)).work(burst=True, logging_level="CRITICAL")


def celery_worker():
    app.worker_main(["worker", "--pool=solo", "--queues", QUEUE, "--loglevel=CRITICAL", "--without-gossip", "--without-mingle"])


queue, held = rq.Queue(QUEUE, connection=client), rq.Queue(QUEUE + "-held", connection=client)
failed = queue.enqueue("operator.truediv", 1, 0)
retried = queue.enqueue("operator.truediv", 2, 0, retry=rq.Retry(max=3, interval=600))
running = held.enqueue("time.sleep", 600, job_timeout=1200)
os.waitpid(in_a_process(failing), 0)
task = again.apply_async(queue=QUEUE)
children = [in_a_process(holding), in_a_process(celery_worker)]
ends = time.time() + 90
while time.time() < ends:
    if running.get_status(refresh=True) == "started" and app.AsyncResult(task.id).state == "RETRY" and client.hlen("unacked") > 0:
        break
    time.sleep(0.05)
print("ready")
sys.stdout.flush()
sys.stdin.read()
for child in children:
    os.kill(child, signal.SIGKILL)
