"""redis-py against an engine: what its users do. Ends with 0 and `all well` if everything holds."""

import asyncio
import sys
import threading

import redis
import redis.asyncio

url = sys.argv[1]

for protocol in (2, 3):
    r = redis.Redis.from_url(url, protocol=protocol, decode_responses=True)
    r.flushall()
    assert r.ping()
    assert r.info("server")["redis_version"]
    assert r.client_id() > 0
    assert r.client_setname("py") and r.client_getname() == "py"

    assert r.set("k", "v", ex=100, nx=True) and r.get("k") == "v" and 0 < r.ttl("k") <= 100
    assert r.set("k", "w", nx=True) is None
    raw = redis.Redis.from_url(url, protocol=protocol)
    raw.set("bin", bytes(range(256)))
    assert raw.get("bin") == bytes(range(256))
    assert r.incrbyfloat("f", 0.1) == 0.1
    assert r.mset({"a": 1, "b": 2}) and r.mget("a", "b", "none") == ["1", "2", None]

    r.hset("h", mapping={"x": "1", "y": "2"})
    assert r.hgetall("h") == {"x": "1", "y": "2"} and r.hincrby("h", "x", 4) == 5
    r.rpush("l", *range(5))
    assert r.lrange("l", 0, -1) == ["0", "1", "2", "3", "4"] and r.lpop("l", 2) == ["0", "1"]
    r.sadd("s", "a", "b", "c")
    assert r.smembers("s") == {"a", "b", "c"} and r.smismember("s", ["a", "z"]) == [1, 0]
    r.zadd("z", {"one": 1, "two": 2.5})
    assert [tuple(pair) for pair in r.zrange("z", 0, -1, withscores=True)] == [("one", 1.0), ("two", 2.5)]
    assert r.zscore("z", "two") == 2.5
    r.geoadd("g", (13.361389, 38.115556, "Palermo"))
    assert r.geosearch("g", member="Palermo", radius=1, unit="km") == ["Palermo"]
    r.pfadd("p", *range(100))
    assert 95 <= r.pfcount("p") <= 105

    first = r.xadd("x", {"n": "1"})
    r.xgroup_create("x", "group", id="0")
    entries = r.xreadgroup("group", "me", {"x": ">"}, count=10)
    entries = entries["x"][0] if isinstance(entries, dict) else entries[0][1]
    assert entries[0][0] == first and r.xack("x", "group", first) == 1
    assert r.xinfo_stream("x")["length"] == 1

    for n in range(1000):
        r.set(f"scan:{n}", n)
    assert len(set(r.scan_iter("scan:*"))) == 1000

    with r.pipeline(transaction=True) as pipe:
        assert pipe.incr("n").incr("n").get("n").execute() == [1, 2, "2"]
    with r.pipeline() as pipe:
        pipe.watch("n")
        r.incr("n")
        pipe.multi()
        pipe.set("n", 0)
        try:
            pipe.execute()
            raise AssertionError("the watched key has changed")
        except redis.WatchError:
            pass
    script = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    assert script(keys=["scripted"], args=[7]) == 7 and script(keys=["scripted"], args=[1]) == 8
    try:
        r.lpush("k", 1)
        raise AssertionError("it is a string")
    except redis.ResponseError as error:
        assert "WRONGTYPE" in str(error)

    pubsub = r.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe("news")
    pubsub.get_message(timeout=5)
    assert r.publish("news", "hello") == 1
    message = None
    while message is None:
        message = pubsub.get_message(timeout=5)
    assert message["data"] == "hello"
    pubsub.close()

    popped = []
    waiter = threading.Thread(target=lambda: popped.append(r.blpop("queue", timeout=20)))
    waiter.start()
    r.rpush("queue", "job")
    waiter.join()
    assert tuple(popped[0]) == ("queue", "job")

    lock = r.lock("lock", timeout=10)
    assert lock.acquire(blocking=False) and not r.lock("lock", timeout=10).acquire(blocking=False)
    lock.release()


async def many():
    r = redis.asyncio.Redis.from_url(url, decode_responses=True)
    await asyncio.gather(*(r.incr("async") for _ in range(200)))
    assert await r.get("async") == "200"
    await r.aclose()


asyncio.run(many())
print("all well")
