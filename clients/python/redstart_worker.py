"""A worker for the queues of ``redstart serve``, with Python's standard library only.

    from redstart_worker import Worker

    def send_mail(payload, job):
        job.progress(0.5)
        print("to", payload["to"])

    Worker("http://127.0.0.1:8380", "mail", {"send_mail": send_mail}, namespace="shop").run()

A handler that returns has done its job. One that raises ``Retry`` or any other exception is tried again later, and
one that raises ``Dead`` becomes a dead letter. A job may run more than once: when a worker dies, another one takes its
jobs at the end of the lease. What the dead worker said too late is refused by the fence.
"""

import http.client
import json
import threading
import time
import urllib.parse
import uuid


class Retry(Exception):
    """Try the job again, after so many seconds or the queue's own backoff."""

    def __init__(self, reason, after=None):
        super().__init__(reason)
        self.after = after


class Dead(Exception):
    """Do not try the job again."""


class Lost(Exception):
    """Another worker has the job by now."""


class Client:
    """Requests to the service; one connection for each thread."""

    def __init__(self, url, namespace=None, token=None, timeout=90):
        parts = urllib.parse.urlsplit(url)
        self.secure = parts.scheme == "https"
        self.host = parts.netloc
        self.base = parts.path.rstrip("/")
        self.query = "?" + urllib.parse.urlencode({"namespace": namespace}) if namespace else ""
        self.token = token
        self.timeout = timeout
        self.local = threading.local()

    def post(self, path, body, key=None):
        """Sends a request; returns the status and the decoded body."""
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = "Bearer " + self.token
        if key:
            headers["idempotency-key"] = key
        connection = getattr(self.local, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
            connection = self.local.connection = kind(self.host, timeout=self.timeout)
        try:
            connection.request("POST", self.base + path + self.query, json.dumps(body), headers)
            reply = connection.getresponse()
            text = reply.read()
        except Exception:
            connection.close()
            self.local.connection = None
            raise
        return reply.status, json.loads(text or b"null")

    def enqueue(self, queue, kind, payload, **options):
        """Adds a job; returns its id. A lost reply is asked for again under the same key."""
        body = {"kind": kind, "payload": payload, **options}
        key = uuid.uuid4().hex
        for attempt in range(5):
            try:
                status, reply = self.post(f"/v1/queues/{quote(queue)}/jobs", body, key)
            except OSError:
                status, reply = 503, {"title": "no answer"}
            if status in (200, 201):
                return reply["id"]
            if status not in (409, 429, 503) or attempt == 4:
                raise RuntimeError(f"{status} {reply.get('title')}: {reply.get('detail', '')}")
            time.sleep(0.2 * 2**attempt)


def quote(name):
    return urllib.parse.quote(name, safe="")


class Job:
    """A job in the hands of this worker."""

    def __init__(self, worker, fields):
        self.worker = worker
        self.id = fields["id"]
        self.kind = fields["kind"]
        self.payload = fields["payload"]
        self.attempt = fields["attempt"]
        self.fence = fields["fence"]
        self.lost = threading.Event()

    def progress(self, share):
        """Records how far the job is, from 0 to 1. Raises ``Lost`` if another worker has it."""
        if not self.worker.tell("progress", {"fence": self.fence, "progress": share}):
            self.lost.set()
            raise Lost(self.id)


class Worker:
    """Takes jobs of some kinds and runs their handlers, one at a time."""

    def __init__(self, url, queue, handlers, namespace=None, token=None, lease=30, wait=20, attempts=10):
        self.client = Client(url, namespace, token, timeout=wait + 30)
        self.queue = queue
        self.handlers = handlers
        self.lease = lease
        self.wait = wait
        self.attempts = attempts
        self.stopping = threading.Event()

    def stop(self):
        """Ends ``run`` after the job that runs now."""
        self.stopping.set()

    def run(self):
        pause = 0.1
        while not self.stopping.is_set():
            try:
                jobs = self.take()
                pause = 0.1
            except (OSError, http.client.HTTPException, RuntimeError):
                # The service restarts, or its store is away: ask again, less and less often.
                self.stopping.wait(pause)
                pause = min(pause * 2, 5)
                continue
            for job in jobs:
                self.work(job)

    def take(self):
        body = {"kinds": list(self.handlers), "max": 1, "wait": self.wait, "lease": self.lease, "attempts": self.attempts}
        status, reply = self.client.post(f"/v1/queues/{quote(self.queue)}:lease", body)
        if status != 200:
            raise RuntimeError(f"{status} {reply.get('title')}")
        return [Job(self, fields) for fields in reply["jobs"]]

    def work(self, job):
        over = threading.Event()
        beat = threading.Thread(target=self.keep, args=(job, over), daemon=True)
        beat.start()
        try:
            self.handlers[job.kind](job.payload, job)
            verdict, body = "ack", {"fence": job.fence}
        except Lost:
            return
        except Dead as reason:
            verdict, body = "fail", {"fence": job.fence, "error": str(reason), "dead": True}
        except Exception as reason:  # the handler's own: it is tried again
            body = {"fence": job.fence, "error": f"{type(reason).__name__}: {reason}", "attempts": self.attempts}
            if getattr(reason, "after", None) is not None:
                body["retry_after"] = reason.after
            verdict = "fail"
        finally:
            over.set()
        self.tell(verdict, body)

    def keep(self, job, over):
        """Extends the lease until the job is over."""
        while not over.wait(self.lease / 3):
            if not self.tell("extend", {"fence": job.fence, "lease": self.lease}):
                job.lost.set()
                return

    def tell(self, verb, body):
        """Says something about a job; ``False`` if the job is another worker's by now."""
        for attempt in range(6):
            try:
                status, _ = self.client.post(f"/v1/queues/{quote(self.queue)}:{verb}", body)
            except (OSError, http.client.HTTPException):
                status = 503
            if status == 200:
                return True
            if status == 409:
                return False
            time.sleep(0.1 * 2**attempt)
        return False
