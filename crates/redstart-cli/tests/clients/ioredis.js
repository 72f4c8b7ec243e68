// ioredis against an engine: what its users do. Ends with 0 and `all well` if everything holds.
const assert = require("node:assert/strict");
const Redis = require("ioredis");

async function main() {
  const redis = new Redis(process.argv[2]);
  const other = new Redis(process.argv[2]);
  await redis.flushall();
  assert.equal(await redis.ping(), "PONG");

  assert.equal(await redis.set("k", "v", "EX", 100, "NX"), "OK");
  assert.equal(await redis.set("k", "w", "NX"), null);
  assert.ok((await redis.ttl("k")) > 0);
  const bytes = Buffer.from(Array.from({ length: 256 }, (_, n) => n));
  await redis.set("bin", bytes);
  assert.ok(bytes.equals(await redis.getBuffer("bin")));

  await redis.hset("h", { x: 1, y: 2 });
  assert.deepEqual(await redis.hgetall("h"), { x: "1", y: "2" });
  await redis.rpush("l", 1, 2, 3);
  assert.deepEqual(await redis.lrange("l", 0, -1), ["1", "2", "3"]);
  await redis.zadd("z", 1, "one", 2.5, "two");
  assert.deepEqual(await redis.zrange("z", 0, -1, "WITHSCORES"), ["one", "1", "two", "2.5"]);
  await redis.sadd("s", "a", "b");
  assert.deepEqual((await redis.smembers("s")).sort(), ["a", "b"]);

  const id = await redis.xadd("x", "*", "n", "1");
  await redis.xgroup("CREATE", "x", "group", "0");
  const [[, entries]] = await redis.xreadgroup("GROUP", "group", "me", "STREAMS", "x", ">");
  assert.equal(entries[0][0], id);
  assert.equal(await redis.xack("x", "group", id), 1);

  assert.deepEqual(await redis.pipeline().incr("n").incr("n").exec(), [[null, 1], [null, 2]]);
  assert.deepEqual(await redis.multi().incr("n").get("n").exec(), [[null, 3], [null, "3"]]);
  await redis.watch("n");
  await other.incr("n");
  assert.equal(await redis.multi().set("n", 0).exec(), null);

  redis.defineCommand("add", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
  assert.equal(await redis.add("scripted", 7), 7);
  assert.equal(await redis.add("scripted", 1), 8);
  await assert.rejects(redis.lpush("k", 1), /WRONGTYPE/);

  for (let n = 0; n < 1000; n++) redis.set(`scan:${n}`, n);
  const found = new Set();
  for await (const keys of redis.scanStream({ match: "scan:*" })) keys.forEach((key) => found.add(key));
  assert.equal(found.size, 1000);

  const heard = new Promise((resolve) => other.once("message", (channel, text) => resolve([channel, text])));
  await other.subscribe("news");
  assert.equal(await redis.publish("news", "hello"), 1);
  assert.deepEqual(await heard, ["news", "hello"]);
  await other.unsubscribe("news");

  const popped = other.blpop("queue", 20);
  await redis.rpush("queue", "job");
  assert.deepEqual(await popped, ["queue", "job"]);

  await Promise.all(Array.from({ length: 500 }, () => redis.incr("many")));
  assert.equal(await redis.get("many"), "500");
  await redis.quit();
  await other.quit();
  console.log("all well");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
