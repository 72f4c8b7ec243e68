// A worker for the queues of `redstart serve`. Node 18.17 or later, no packages.
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
//
// While the service cannot be reached, the worker goes on and asks again. `job.signal` is aborted when somebody cancelled
// the job, when it ran past its timeout, or when another worker has it: give it to `fetch` and the like. After its timeout
// a job is tried again and the worker takes the next one, whether or not the handler has ended.

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

/** Whether a refusal may be gone when the request is sent again. */
const isPassing = (status) => status === 408 || status === 429 || status >= 500;

const NO_ANSWER = { status: 503, body: { title: "no answer" } };

export class Client {
  constructor(url, { namespace, token } = {}) {
    this.url = url.replace(/\/$/, "");
    this.query = namespace ? `?namespace=${encodeURIComponent(namespace)}` : "";
    this.token = token;
  }

  /** Sends a request. Throws if there was no answer; an error that is not JSON, such as a proxy's page, has no fields. */
  async post(path, body, { key, signal } = {}) {
    const headers = { "content-type": "application/json" };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    if (key) headers["idempotency-key"] = key;
    const reply = await fetch(this.url + path + this.query, { method: "POST", body: JSON.stringify(body), headers, signal });
    const text = await reply.text();
    let fields = null;
    try {
      fields = JSON.parse(text);
    } catch {
      // Not the service's.
    }
    if (fields !== null && typeof fields === "object" && !Array.isArray(fields)) return { status: reply.status, body: fields };
    if (reply.status < 400) throw new Error(`a reply of ${reply.status} that is not the service's`);
    return { status: reply.status, body: {} };
  }

  /** Adds a job; returns its id. A lost reply is asked for again under the same key. */
  async enqueue(queue, kind, payload, options = {}) {
    const key = randomUUID();
    for (let attempt = 0; ; attempt += 1) {
      const path = `/v1/queues/${encodeURIComponent(queue)}/jobs`;
      const { status, body } = await this.post(path, { kind, payload, ...options }, { key }).catch(() => NO_ANSWER);
      if (status === 200 || status === 201) return body.id;
      if (!(status === 409 || isPassing(status)) || attempt === 4) throw new Error(`${status} ${body.title}: ${body.detail ?? ""}`);
      await sleep(200 * 2 ** attempt);
    }
  }
}

export class Worker {
  constructor(url, queue, handlers, { namespace, token, lease = 30, wait = 20, attempts = 10, warn = console.warn } = {}) {
    this.client = new Client(url, { namespace, token });
    Object.assign(this, { queue, handlers, lease, wait, attempts, warn });
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
    const signal = AbortSignal.any([this.stopping.signal, AbortSignal.timeout((this.wait + 30) * 1000)]);
    const reply = await this.client.post(path, body, { signal });
    if (reply.status !== 200) throw new Error(`${reply.status} ${reply.body.title}`);
    return reply.body.jobs ?? [];
  }

  async work(job) {
    const state = { lost: false, cancelled: false, over: new AbortController(), settled: new AbortController() };
    const handle = {
      ...job,
      signal: state.over.signal,
      isLost: () => state.lost,
      isCancelled: () => state.cancelled,
      // While the service cannot be reached, nothing is recorded and nothing is thrown.
      progress: async (share) => {
        const { answer } = await this.tell("progress", { fence: job.fence, progress: share }, { tries: 2 });
        if (answer !== "lost") return;
        state.lost = true;
        state.over.abort();
        throw new Lost(job.id);
      },
    };
    const beat = this.keep(job, state);
    try {
      const verdict = await this.handled(job, handle, state);
      // The lease is kept until this is written.
      if (verdict && !state.lost) await this.tell(verdict.verb, { fence: job.fence, ...verdict.body }, { patience: this.lease * 1000 });
    } finally {
      state.settled.abort();
      await beat;
    }
  }

  /** Runs the handler, for no longer than the job's timeout; what to say of it. */
  async handled(job, handle, state) {
    const timer = new AbortController();
    const run = (async () => this.handlers[job.kind](job.payload, handle))();
    const late = async () => {
      await sleep(job.timeout * 1000, undefined, { signal: timer.signal });
      state.over.abort();
      throw new Error("timed out");
    };
    try {
      await (job.timeout ? Promise.race([run, late()]) : run);
      return { verb: "ack" };
    } catch (error) {
      run.catch(() => {}); // what a late handler throws is nobody's any more
      if (error instanceof Lost) return null;
      const body = { error: String(error?.message ?? error), attempts: this.attempts };
      if (error instanceof Dead) body.dead = true;
      if (error?.after !== undefined) body.retry_after = error.after;
      return { verb: "fail", body };
    } finally {
      timer.abort();
    }
  }

  /** Extends the lease until the job is settled. Only another worker's lease ends this, not a lost reply. */
  async keep(job, state) {
    let pause = (this.lease * 1000) / 3;
    while (!state.settled.signal.aborted) {
      await sleep(pause, undefined, { signal: state.settled.signal }).catch(() => {});
      if (state.settled.signal.aborted) return;
      const { answer, body } = await this.tell("extend", { fence: job.fence, lease: this.lease });
      if (answer === "lost") state.lost = true;
      if (body.cancelled) state.cancelled = true;
      if (state.lost || state.cancelled) state.over.abort();
      if (state.lost) return;
      pause = answer === "done" ? (this.lease * 1000) / 3 : Math.min(1000, (this.lease * 1000) / 30);
    }
  }

  /**
   * Says something about a job: `done`, `lost` if it is another worker's by now, or `unknown`. It is said again while
   * there is no answer, so often or for so many milliseconds.
   */
  async tell(verb, body, { tries = 1, patience = 0 } = {}) {
    const path = `/v1/queues/${encodeURIComponent(this.queue)}:${verb}`;
    const end = Date.now() + patience;
    for (let pause = 100; ; pause = Math.min(pause * 2, 1000)) {
      // A request that hangs must not outlast the lease.
      const signal = AbortSignal.timeout(Math.max((this.lease * 1000) / 3, 1000));
      const reply = await this.client.post(path, body, { signal }).catch(() => NO_ANSWER);
      if (reply.status === 200) return { answer: "done", body: reply.body };
      if (reply.status === 409) return { answer: "lost", body: reply.body };
      tries -= 1;
      if (!isPassing(reply.status)) {
        this.warn(`${verb} was refused: ${reply.status} ${reply.body.detail ?? reply.body.title}`);
        return { answer: "unknown", body: {} };
      }
      if (tries <= 0 && Date.now() >= end) return { answer: "unknown", body: {} };
      await sleep(pause);
    }
  }
}
