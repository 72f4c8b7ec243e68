// ioredis's cluster client against a cluster of one node; the argument is its port.

const assert = require("assert");
const { Cluster } = require("ioredis");

async function main() {
  const port = Number(process.argv[2]);
  const cluster = new Cluster([{ host: "127.0.0.1", port }]);
  cluster.on("error", (error) => {
    throw error;
  });
  for (let n = 0; n < 200; n++) await cluster.set(`key:${n}`, n);
  const values = await Promise.all([...Array(200).keys()].map((n) => cluster.get(`key:${n}`)));
  assert.deepStrictEqual(values, [...Array(200).keys()].map(String));
  assert.strictEqual(cluster.nodes("master").length, 1);
  assert.strictEqual(await cluster.nodes("master")[0].dbsize(), 200);
  assert.deepStrictEqual(await cluster.mget("{t}a", "{t}b"), [null, null]);
  await assert.rejects(cluster.mget("a", "b"), /slot/);

  cluster.defineCommand("add", {
    numberOfKeys: 1,
    lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])",
  });
  assert.strictEqual(await cluster.add("sum", 5), 5);
  const replies = await cluster.pipeline().incr("{t}n").incr("{t}n").exec();
  assert.deepStrictEqual(replies, [[null, 1], [null, 2]]);

  const heard = new Promise((resolve) => cluster.on("message", (_, text) => resolve(text)));
  await cluster.subscribe("news");
  const sender = new Cluster([{ host: "127.0.0.1", port }]);
  await sender.publish("news", "hello");
  assert.strictEqual(await heard, "hello");
  cluster.disconnect();
  sender.disconnect();
  console.log("all well");
}

main();
