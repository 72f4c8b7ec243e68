"""RQ at work: jobs that are done, that fail and are tried again, and a client that waits for their results.

    python rq_busy.py PORT work    a worker, which forks for each job, as long as it lives
    python rq_busy.py PORT send    the client, as long as it lives; prints "busy" when results flow
"""

import sys
import time

import redis
import rq

client = redis.Redis(port=int(sys.argv[1]))
queue = rq.Queue("default", connection=client)


def send():
    n = 0
    while True:
        jobs = [
            queue.enqueue("operator.add", n, 1, result_ttl=600),
            queue.enqueue("operator.truediv", n, 0, retry=rq.Retry(max=1), failure_ttl=600),
        ]
        while not all(job.get_status() in ("finished", "failed") for job in jobs):
            time.sleep(0.01)
        n += 1
        if n == 3:
            print("busy", flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "send":
        send()
    else:
        rq.Worker([queue], connection=client).work(logging_level="CRITICAL")
