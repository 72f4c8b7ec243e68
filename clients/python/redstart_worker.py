"""A worker for the queues of ``redstart serve``, with Python's standard library only.

    from redstart_worker import Worker

    def send_mail(payload, job):
        job.progress(0.5)
        print("to", payload["to"])

    Worker("http://127.0.0.1:8380", "mail", {"send_mail": send_mail}, namespace="shop").run()

A handler that returns has done its job. One that raises ``Retry`` or any other exception is tried again later, and
one that raises ``Dead`` becomes a dead letter. A job may run more than once: when a worker dies, another one takes its
jobs at the end of the lease. What the dead worker said too late is refused by the fence.

While the service cannot be reached, the worker goes on and asks again. A handler that works for long should look at
``job.over``: it is set when somebody cancelled the job, when it ran past its timeout, or when another worker has it.
Python cannot end a handler that does not look; the job is tried again elsewhere all the same.
"""

import http.client
import json
import logging
import threading
import time
import urllib.parse
import uuid

log = logging.getLogger("redstart_worker")


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
        """Sends a request; returns the status and the object of the reply.

        Raises ``OSError`` if there was no answer. An error that is not JSON, such as a proxy's page, has no fields.
        """
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
        except BaseException as error:
            connection.close()
            self.local.connection = None
            if isinstance(error, http.client.HTTPException):
                raise ConnectionError(f"the reply broke off: {type(error).__name__}") from error
            raise
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            return reply.status, fields
        if reply.status < 400:
            raise ConnectionError(f"a reply of {reply.status} that is not the service's")
        return reply.status, {}

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
            if not (status == 409 or is_passing(status)) or attempt == 4:
                raise RuntimeError(f"{status} {reply.get('title')}: {reply.get('detail', '')}")
            time.sleep(0.2 * 2**attempt)


def quote(name):
    return urllib.parse.quote(name, safe="")


def is_passing(status):
    """Whether a refusal may be gone when the request is sent again."""
    return status in (408, 429) or status >= 500


class Job:
    """A job in the hands of this worker."""

    def __init__(self, worker, fields):
        self.worker = worker
        self.id = fields["id"]
        self.kind = fields["kind"]
        self.payload = fields["payload"]
        self.attempt = fields["attempt"]
        self.fence = fields["fence"]
        self.timeout = fields.get("timeout")
        #: Another worker has it by now.
        self.lost = threading.Event()
        #: Somebody cancelled it. It is not tried again, whatever its handler does.
        self.cancelled = threading.Event()
        #: There is no use in going on: lost, cancelled, or past its timeout.
        self.over = threading.Event()

    def progress(self, share):
        """Records how far the job is, from 0 to 1. Raises ``Lost`` if another worker has it.

        While the service cannot be reached, nothing is recorded and nothing is raised.
        """
        answer, _ = self.worker.tell("progress", {"fence": self.fence, "progress": share}, tries=2)
        if answer == LOST:
            self.lost.set()
            self.over.set()
            raise Lost(self.id)


#: What became of something that was said about a job.
DONE, LOST, UNKNOWN = "done", "lost", "unknown"


class Worker:
    """Takes jobs of some kinds and runs their handlers, one at a time."""

    def __init__(self, url, queue, handlers, namespace=None, token=None, lease=30, wait=20, attempts=10):
        self.client = Client(url, namespace, token, timeout=wait + 30)
        # A request that hangs must not outlast the lease.
        self.teller = Client(url, namespace, token, timeout=max(lease / 3, 1))
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
            except (OSError, RuntimeError) as error:
                # The service restarts, or its store is away: ask again, less and less often.
                log.debug("no jobs: %s", error)
                self.stopping.wait(pause)
                pause = min(pause * 2, 5)
                continue
            for job in jobs:
                self.work(job)

    def take(self):
        body = {"kinds": list(self.handlers), "max": 1, "wait": self.wait, "lease": self.lease, "attempts": self.attempts}
        status, reply = self.client.post(f"/v1/queues/{quote(self.queue)}:lease", body)
        if status != 200:
            raise RuntimeError(f"{status} {reply.get('title')}: {reply.get('detail', '')}")
        return [Job(self, fields) for fields in reply.get("jobs", [])]

    def work(self, job):
        settled = threading.Event()
        beat = threading.Thread(target=self.keep, args=(job, settled), daemon=True)
        beat.start()
        try:
            try:
                self.handlers[job.kind](job.payload, job)
                verdict, body = "ack", {"fence": job.fence}
            except Lost:
                return
            except Dead as reason:
                verdict, body = "fail", {"fence": job.fence, "error": str(reason), "dead": True}
            except Exception as reason:  # the handler's own: it is tried again
                verdict, body = "fail", self.failure(job, f"{type(reason).__name__}: {reason}")
                if getattr(reason, "after", None) is not None:
                    body["retry_after"] = reason.after
            # The lease is kept until this is written.
            if not job.lost.is_set():
                self.tell(verdict, body, patience=self.lease)
        finally:
            settled.set()

    def failure(self, job, error):
        return {"fence": job.fence, "error": error, "attempts": self.attempts}

    def keep(self, job, settled):
        """Extends the lease until the job is settled. Only another worker's lease ends this, not a lost reply."""
        started = time.monotonic()
        pause = self.lease / 3
        while True:
            left = float("inf") if job.timeout is None else job.timeout - (time.monotonic() - started)
            if settled.wait(max(0, min(pause, left))):
                return
            if job.timeout is not None and time.monotonic() - started >= job.timeout:
                job.over.set()
                self.tell("fail", self.failure(job, "timed out"), patience=self.lease)
                job.lost.set()
                return
            answer, reply = self.tell("extend", {"fence": job.fence, "lease": self.lease})
            if answer == LOST:
                job.lost.set()
                job.over.set()
                return
            if reply.get("cancelled"):
                job.cancelled.set()
                job.over.set()
            pause = self.lease / 3 if answer == DONE else min(1, self.lease / 30)

    def tell(self, verb, body, tries=1, patience=0):
        """Says something about a job: ``DONE``, ``LOST`` if it is another worker's by now, or ``UNKNOWN``; and the reply.

        It is said again while there is no answer, so often or for so many seconds.
        """
        end = time.monotonic() + patience
        pause = 0.1
        while True:
            try:
                status, reply = self.teller.post(f"/v1/queues/{quote(self.queue)}:{verb}", body)
            except OSError:
                status, reply = 503, {}
            if status == 200:
                return DONE, reply
            if status == 409:
                return LOST, reply
            tries -= 1
            if not is_passing(status):
                log.warning("%s was refused: %s %s", verb, status, reply.get("detail") or reply.get("title"))
                return UNKNOWN, reply
            if tries <= 0 and time.monotonic() >= end:
                return UNKNOWN, reply
            time.sleep(pause)
            pause = min(pause * 2, 1)
