// An old application: sessions of Express, and a queue that BullMQ 5 and 6 share.
//
//   node old_app.js PORT
//
// Works until it is told otherwise. Reads lines: "workers off", "workers on", "adders off", "adders on", and "pause MODULE" and "resume MODULE" of the queue
// (answered with "ok"), and "end", which is answered with JSON: how much was done, and the errors that were seen.
"use strict";

const readline = require("readline");
const { createClient } = require("redis");
const { RedisStore } = require("connect-redis");
const port = Number(process.argv[2]);
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const done = { sessions: 0, added: 0, run: 0 };
const errors = [];
const note = (error) => errors.push(String(error));
const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let ended = false;
let adding = true;
let adds = 0;
let workers = [];
const libraries = ["bullmq5", "bullmq6"].map(require);

function hire() {
  workers = libraries.map(({ Worker }) => {
    const worker = new Worker("mail", async () => { await rest(2); done.run++; }, { connection });
    worker.on("error", note);
    worker.on("failed", (job, error) => note(error));
    return worker;
  });
  return Promise.all(workers.map((worker) => worker.waitUntilReady()));
}

async function add({ Queue }) {
  const queue = new Queue("mail", { connection });
  while (!ended) {
    if (adding) {
      adds++;
      await queue.add("welcome", { n: done.added });
      done.added++;
      adds--;
    }
    await rest(5);
  }
  await queue.close();
}

async function visit(store) {
  for (let n = 0; !ended; n++) {
    const id = `visitor${String(n % 20).padStart(25, "0")}`;
    const cookie = { originalMaxAge: 3600000, expires: new Date(Date.now() + 3600000), httpOnly: true, path: "/" };
    await store.set(id, { cookie, user: n });
    const session = await store.get(id);
    if (!session || session.user !== n) note(`session of ${n} is ${JSON.stringify(session)}`);
    await store.touch(id, session);
    done.sessions++;
    await rest(2);
  }
}

async function main() {
  const client = createClient({ url: `redis://127.0.0.1:${port}` });
  client.on("error", note);
  await client.connect();
  const busy = [visit(new RedisStore({ client })), ...libraries.map(add)].map((work) => work.catch(note));
  await hire();
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === "end") break;
    if (line === "workers off") await Promise.all(workers.map((worker) => worker.close()));
    if (line === "workers on") await hire();
    if (line === "adders off") {
      adding = false;
      while (adds > 0) await rest(5);
    }
    if (line === "adders on") adding = true;
    const [call, module] = line.split(" ");
    if (call === "pause" || call === "resume") {
      const queue = new (require(module).Queue)("mail", { connection });
      await queue[call]();
      await queue.close();
    }
    console.log("ok");
  }
  ended = true;
  await Promise.all(busy);
  await Promise.all(workers.map((worker) => worker.close()));
  console.log(JSON.stringify({ done, errors }));
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
