// node-redis against an engine: what its users do, in both protocols. Ends with 0 and `all well` if everything holds.
const assert = require("node:assert/strict");
const { createClient, defineScript, RESP_TYPES, WatchError } = require("redis");

const add = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: "return redis.call('INCRBY', KEYS[1], ARGV[1])",
  parseCommand(parser, key, number) {
    parser.pushKey(key);
    parser.push(String(number));
  },
  transformReply: (reply) => reply,
});

async function opened(options) {
  // In RESP3 it gives what it reads from streams as the server sends it.
  const client = createClient({ url: process.argv[2], scripts: { add }, unstableResp3: true, ...options });
  client.on("error", (error) => {
    throw error;
  });
  return client.connect();
}

async function check(RESP) {
  const redis = await opened({ RESP });
  const other = await opened({ RESP });
  await redis.flushAll();
  assert.equal(await redis.ping(), "PONG");

  assert.equal(await redis.set("k", "v", { expiration: { type: "EX", value: 100 }, condition: "NX" }), "OK");
  assert.equal(await redis.set("k", "w", { condition: "NX" }), null);
  assert.ok((await redis.ttl("k")) > 0);
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
  await redis.set("bin", bytes);
  const raw = redis.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  assert.ok(bytes.equals(await raw.get("bin")));

  await redis.hSet("h", { x: 1, y: 2 });
  assert.deepEqual({ ...(await redis.hGetAll("h")) }, { x: "1", y: "2" });
  await redis.rPush("l", ["1", "2", "3"]);
  assert.deepEqual(await redis.lRange("l", 0, -1), ["1", "2", "3"]);
  await redis.zAdd("z", [
    { score: 1, value: "one" },
    { score: 2.5, value: "two" },
  ]);
  const scored = await redis.zRangeWithScores("z", 0, -1);
  assert.deepEqual(
    scored.map(({ value, score }) => [value, score]),
    [["one", 1], ["two", 2.5]],
  );
  assert.equal(await redis.zScore("z", "two"), 2.5);
  await redis.sAdd("s", ["a", "b"]);
  assert.deepEqual([...(await redis.sMembers("s"))].sort(), ["a", "b"]);
  await redis.geoAdd("g", { longitude: 13.4, latitude: 52.5, member: "berlin" });
  assert.equal((await redis.geoPos("g", "berlin")).length, 1);

  const id = await redis.xAdd("x", "*", { n: "1" });
  await redis.xGroupCreate("x", "group", "0");
  const read = await redis.xReadGroup("group", "me", { key: "x", id: ">" });
  if (RESP === 3) {
    assert.deepEqual({ ...read }, { x: [[id, ["n", "1"]]] });
  } else {
    const [{ messages }] = read;
    assert.equal(messages[0].id, id);
    assert.deepEqual({ ...messages[0].message }, { n: "1" });
  }
  assert.equal((await redis.xPending("x", "group")).pending, 1);
  assert.equal(await redis.xAck("x", "group", id), 1);
  assert.equal((await redis.xInfoStream("x")).length, 1);

  // Requests of one tick leave together.
  assert.deepEqual(await Promise.all([redis.incr("n"), redis.incr("n")]), [1, 2]);
  assert.deepEqual(await redis.multi().incr("n").get("n").exec(), [3, "3"]);
  await redis.watch("n");
  await other.incr("n");
  await assert.rejects(redis.multi().set("n", 0).exec(), WatchError);

  assert.equal(await redis.add("scripted", 7), 7);
  assert.equal(await redis.add("scripted", 1), 8);
  const library = "#!lua name=mine\nredis.register_function('bump', function(keys, args) return redis.call('INCRBY', keys[1], args[1]) end)";
  await redis.functionLoad(library, { REPLACE: true });
  assert.equal(await redis.fCall("bump", { keys: ["scripted"], arguments: ["2"] }), 10);
  await assert.rejects(redis.lPush("k", "1"), /WRONGTYPE/);

  await Promise.all(Array.from({ length: 1000 }, (_, n) => redis.set(`scan:${n}`, String(n))));
  const found = new Set();
  for await (const keys of redis.scanIterator({ MATCH: "scan:*" })) keys.forEach((key) => found.add(key));
  assert.equal(found.size, 1000);

  const heard = new Promise((resolve) => {
    other.subscribe("news", (text, channel) => resolve([channel, text])).then(() => redis.publish("news", "hello"));
  });
  assert.deepEqual(await heard, ["news", "hello"]);
  await other.unsubscribe("news");
  const sharded = new Promise((resolve) => {
    other.sSubscribe("shard", (text) => resolve(text)).then(() => redis.sPublish("shard", "hello"));
  });
  assert.equal(await sharded, "hello");
  await other.sUnsubscribe("shard");

  // A client that had subscriptions gives bytes, also with the servers.
  const popped = other.blPop("queue", 20);
  await redis.rPush("queue", "job");
  const { key, element } = await popped;
  assert.deepEqual([String(key), String(element)], ["queue", "job"]);

  await Promise.all(Array.from({ length: 500 }, () => redis.incr("many")));
  assert.equal(await redis.get("many"), "500");
  await redis.close();
  await other.close();
}

// Values that are kept in the program until the server says that they have changed.
async function checkCache() {
  const clientSideCache = { ttl: 0, maxEntries: 0, evictPolicy: "LRU" };
  const redis = await opened({ RESP: 3, clientSideCache });
  const other = await opened({ RESP: 3 });
  const asked = async () => Number(/cmdstat_get:calls=(\d+)/.exec(await other.info("commandstats"))[1]);
  await other.set("cached", "1");
  assert.equal(await redis.get("cached"), "1");
  const before = await asked();
  for (let n = 0; n < 10; n++) assert.equal(await redis.get("cached"), "1");
  assert.equal(await asked(), before);
  await other.set("cached", "2");
  const deadline = Date.now() + 20_000;
  while ((await redis.get("cached")) !== "2") {
    assert.ok(Date.now() < deadline, "the old value is still there");
    // A cached value is given without the loop that would hear of its change.
    await new Promise(setImmediate);
  }
  await redis.close();
  await other.close();
}

async function main() {
  await check(2);
  await check(3);
  await checkCache();
  console.log("all well");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
