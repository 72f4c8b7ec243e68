// A worker for the queues of `redstart serve`. Node 18 or later, no packages.
//
//     import { Worker } from "./redstart-worker.mjs";
//
//     const worker = new Worker("http://127.0.0.1:8380", "mail", {
//       send_mail: async (payload, job) => { await job.progress(0.5); console.log("to", payload.to); },
//     }, { namespace: "shop" });
//     await worker.run();
//
// A handler that returns has done its job. One that throws is tried again later; `new Dead(reason)` is not. A job may run
// more than once: when a worker dies, another one takes its jobs at the end of the lease, and what the dead worker says too
// late is refused by the fence.

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

/** Try the job again, after so many seconds or the queue's own backoff. */
export class Retry extends Error {
  constructor(reason, after) {
    super(reason);
    this.after = after;
  }
}

/** Do not try the job again. */
export class Dead extends Error {}

/** Another worker has the job by now. */
export class Lost extends Error {}

export class Client {
  constructor(url, { namespace, token } = {}) {
    this.url = url.replace(/\/$/, "");
    this.query = namespace ? `?namespace=${encodeURIComponent(namespace)}` : "";
    this.token = token;
  }

  async post(path, body, { key, signal } = {}) {
    const headers = { "content-type": "application/json" };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    if (key) headers["idempotency-key"] = key;
    const reply = await fetch(this.url + path + this.query, { method: "POST", body: JSON.stringify(body), headers, signal });
    const text = await reply.text();
    return { status: reply.status, body: text ? JSON.parse(text) : null };
  }

  /** Adds a job; returns its id. A lost reply is asked for again under the same key. */
  async enqueue(queue, kind, payload, options = {}) {
    const key = randomUUID();
    for (let attempt = 0; ; attempt += 1) {
      const path = `/v1/queues/${encodeURIComponent(queue)}/jobs`;
      const reply = await this.post(path, { kind, payload, ...options }, { key }).catch(() => ({ status: 503, body: { title: "no answer" } }));
      if (reply.status === 200 || reply.status === 201) return reply.body.id;
      if (![409, 429, 503].includes(reply.status) || attempt === 4) throw new Error(`${reply.status} ${reply.body?.title}`);
      await sleep(200 * 2 ** attempt);
    }
  }
}

export class Worker {
  constructor(url, queue, handlers, { namespace, token, lease = 30, wait = 20, attempts = 10 } = {}) {
    this.client = new Client(url, { namespace, token });
    Object.assign(this, { queue, handlers, lease, wait, attempts });
    this.stopping = new AbortController();
  }

  /** Ends `run` after the job that runs now. */
  stop() {
    this.stopping.abort();
  }

  async run() {
    let pause = 100;
    while (!this.stopping.signal.aborted) {
      let jobs = [];
      try {
        jobs = await this.take();
        pause = 100;
      } catch {
        // The service restarts, or its store is away: ask again, less and less often.
        await sleep(pause);
        pause = Math.min(pause * 2, 5000);
      }
      for (const job of jobs) await this.work(job);
    }
  }

  async take() {
    const body = { kinds: Object.keys(this.handlers), max: 1, wait: this.wait, lease: this.lease, attempts: this.attempts };
    const path = `/v1/queues/${encodeURIComponent(this.queue)}:lease`;
    const reply = await this.client.post(path, body, { signal: this.stopping.signal });
    if (reply.status !== 200) throw new Error(`${reply.status} ${reply.body?.title}`);
    return reply.body.jobs;
  }

  async work(job) {
    let lost = false;
    const beat = setInterval(async () => {
      lost ||= !(await this.tell("extend", { fence: job.fence, lease: this.lease }));
    }, (this.lease * 1000) / 3);
    const handle = {
      ...job,
      isLost: () => lost,
      progress: async (share) => {
        if (!(await this.tell("progress", { fence: job.fence, progress: share }))) throw new Lost(job.id);
      },
    };
    try {
      await this.handlers[job.kind](job.payload, handle);
      await this.tell("ack", { fence: job.fence });
    } catch (error) {
      if (error instanceof Lost) return;
      const body = { fence: job.fence, error: String(error?.message ?? error), attempts: this.attempts };
      if (error instanceof Dead) body.dead = true;
      if (error?.after !== undefined) body.retry_after = error.after;
      await this.tell("fail", body);
    } finally {
      clearInterval(beat);
    }
  }

  /** Says something about a job; `false` if the job is another worker's by now. */
  async tell(verb, body) {
    const path = `/v1/queues/${encodeURIComponent(this.queue)}:${verb}`;
    for (let attempt = 0; attempt < 6; attempt += 1) {
      const { status } = await this.client.post(path, body).catch(() => ({ status: 503 }));
      if (status === 200) return true;
      if (status === 409) return false;
      await sleep(100 * 2 ** attempt);
    }
    return false;
  }
}
