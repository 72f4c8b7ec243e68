"""redis-py's cluster client against a cluster of one node; the argument is its port."""

import sys

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, ResponseError

client = RedisCluster(host="127.0.0.1", port=int(sys.argv[1]), decode_responses=True)
nodes = client.get_nodes()
assert len(nodes) == 1 and nodes[0].server_type == "primary", nodes

for n in range(200):
    assert client.set(f"key:{n}", n)
assert [client.get(f"key:{n}") for n in range(200)] == [str(n) for n in range(200)]
assert client.mset_nonatomic({f"many:{n}": n for n in range(50)})
assert client.mget("{t}a", "{t}b") == [None, None]
assert client.dbsize() == 250
assert client.cluster_keyslot("somekey") == 11058
assert client.keyslot("somekey") == 11058
assert client.cluster_info(target_nodes=nodes[0])["cluster_state"] == "ok"
assert len(client.cluster_nodes()) == 1

pipe = client.pipeline()
for n in range(10):
    pipe.incr(f"counter:{n}")
assert pipe.execute() == [1] * 10

add = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
assert add(keys=["sum"], args=[5]) == 5

try:
    nodes[0].redis_connection.execute_command("MGET", "a", "b")
    raise AssertionError("keys of different slots in one command")
except (ResponseError, RedisClusterException) as error:
    assert "slot" in str(error), error

print("all well")
