"""Takes a lock of redis-py and ends without a release, as a process that was killed.

    python redis_py_lock.py PORT NAME [SECONDS]    without SECONDS the lock has no time-out
"""

import os
import sys

import redis

client = redis.Redis(port=int(sys.argv[1]))
timeout = float(sys.argv[3]) if len(sys.argv) > 3 else None
assert client.lock(sys.argv[2], timeout=timeout).acquire(blocking=False)
os._exit(0)
