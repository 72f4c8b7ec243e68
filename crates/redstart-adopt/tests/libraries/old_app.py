"""An old application: a cache of plain JSON without TTLs, and hand-made locks without a TTL: one is taken often, one is held for long.

    python old_app.py PORT

Works until it is told otherwise. Reads lines: "locks off" and "locks on" (answered with "ok"), and "end", which is answered with JSON: how much was done, and the
errors that were seen.
"""

import json
import random
import sys
import threading
import time

import redis

client = redis.Redis(port=int(sys.argv[1]))
done = {"cache": 0, "lock": 0}
errors = []
locking, ended, idle = threading.Event(), threading.Event(), threading.Event()
locking.set()
client.set("lock:report", "host-1:4711")


def cache():
    while not ended.is_set():
        key = f"product:{random.randrange(60)}"
        found = client.get(key)
        if found is None:
            client.set(key, json.dumps({"key": key, "name": "tea"}))
        elif json.loads(found)["key"] != key:
            errors.append(f"{key} holds {found}")
        done["cache"] += 1
        time.sleep(0.002)


def lock():
    while not ended.is_set():
        if not locking.is_set():
            idle.set()
            time.sleep(0.01)
        elif client.set("lock:stock", "old", nx=True):
            if client.incr("lock:stock:inside") != 1:
                errors.append("somebody else was inside")
            client.decr("lock:stock:inside")
            client.delete("lock:stock")
            done["lock"] += 1
        else:
            time.sleep(0.002)


def guarded(work):
    def run():
        try:
            work()
        except Exception as error:
            errors.append(repr(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


threads = [guarded(cache), guarded(cache), guarded(lock)]
print("ready")
for line in sys.stdin:
    line = line.strip()
    if line == "locks off":
        idle.clear()
        locking.clear()
        idle.wait(60)
        client.delete("lock:report")
        print("ok")
    elif line == "locks on":
        client.set("lock:report", "host-1:4711")
        locking.set()
        print("ok")
    else:
        break
ended.set()
for thread in threads:
    thread.join(60)
print(json.dumps({"done": done, "errors": errors}))
