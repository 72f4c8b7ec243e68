"""redis-py's Lock, contended or held.

    python locks.py PORT KEY TIMES SECONDS   prints "ready", waits for a line, and takes the lock TIMES times; SECONDS is its timeout, 0
                                             for none
    python locks.py PORT KEY hold            takes it without a timeout, prints "held", and waits

In the lock, nobody else may be inside, and it adds one to a counter in two steps and its name to a list. Prints how often somebody else was inside.
"""

import sys

import redis

port, key, times = sys.argv[1:4]
client = redis.Redis(port=int(port))
if times == "hold":
    assert client.lock(key).acquire()
    print("held")
    sys.stdin.read()
    sys.exit()

seconds = int(sys.argv[4]) or None
met = 0
client.ping()
print("ready")
sys.stdin.readline()
for _ in range(int(times)):
    with client.lock(key, timeout=seconds, sleep=0.002):
        inside, count = client.pipeline(transaction=False).incr(f"{key}:inside").get(f"{key}:count").execute()
        met += inside != 1
        leave = client.pipeline(transaction=False).set(f"{key}:count", int(count or 0) + 1)
        leave.rpush(f"{key}:order", f"redis-py {seconds}").decr(f"{key}:inside").execute()
print(met)
